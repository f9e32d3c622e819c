"""The flat rows against hand-computed cases, the golden vectors that share their rule, and the padded rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import advantages as padded_advantages
from . import flat_rows as flat
from . import rows
from .arrays import Array, Batch, Loss, evaluate

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
OLD = np.log([0.5, 0.5, 0.5])
SEQ = np.array([0, 0, 1])
ZERO = np.zeros(3, dtype=np.int64)


def tokens(ratios: list[float], adv: list[float], seq: list[int] | None = None, group: list[int] | None = None) -> Any:
    """(new, old, sampler, adv, seq, group) with old = sampler = 0.5 and the given ratios to it."""
    new = OLD + np.log(ratios)
    ids = SEQ if seq is None else np.array(seq)
    return new, OLD, OLD, np.array(adv, dtype=np.float64), ids, ZERO if group is None else np.array(group)


def both(function: Callable[..., float], case: Any, **kw: Any) -> tuple[float, Array]:
    return function(*case, **kw), flat.gradient(function, *case, **kw)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-8)


def test_gspo_token_value_gradient_and_clip() -> None:
    s = exp(1e-4)
    case = (OLD + np.array([0.3, -0.2998, -1e-3]), OLD, OLD, np.array([2.0, 2.0, 1.0]), SEQ, ZERO)
    value, slope = both(flat.gspo_token, case)
    close(value, -(2 * s + exp(-1e-3)) / 2)
    close(slope, [-s * 2 / (2 * 2), -s * 2 / (2 * 2), -exp(-1e-3) / 2])
    value, slope = both(flat.gspo_token, (case[0], OLD, OLD, -case[3], SEQ, ZERO))
    close(value, (2 * s + 1 - 3e-4) / 2)
    close(slope, [s / 2, s / 2, 0])  # the last sequence fell below 1 - 3e-4 with A < 0


def test_gmpo_clips_one_side_by_sign() -> None:
    value, slope = both(flat.gmpo, tokens([exp(0.6), exp(0.2), exp(0.6)], [1, 1, -2]))
    close(value, (-exp(0.3) + 2 * exp(0.6)) / 2)
    close(slope, [0, -exp(0.3) / 4, exp(0.6)])


def test_sapo_weight_is_one_at_ratio_one_and_sech_squared_elsewhere() -> None:
    value, slope = both(flat.sapo, tokens([1, 1, 1], [1, 1, -1]))
    close(value, (-2 + 2 / 1.05) / 2)
    close(slope, [-1 / 4, -1 / 4, 1 / 2])
    _, slope = both(flat.sapo, tokens([2, 1, 3], [1, 1, -1]))
    close(slope[[0, 2]], [-2 / np.cosh(0.5) ** 2 / 4, 3 / np.cosh(1.05) ** 2 / 2])


def test_kl_cov_pays_on_the_chosen_only() -> None:
    value, slope = both(flat.kl_cov, tokens([2, 2, 0.5], [1, 1, 1]), chosen=np.array([True, False, True]), coef=0.5)
    close(value, (-2 - 2 - 0.5 + 0.5 * 2 * log(2)) / 3)
    close(slope, [(-2 + 0.5) / 3, -2 / 3, (-0.5 - 0.5) / 3])


def test_topr_weighs_negative_sequences_by_the_capped_product() -> None:
    value, slope = both(flat.topr, tokens([0.5, 0.5, 3], [-1, -1, 2]))
    close(value, (0.25 * 2 * log(0.25) - 2 * log(1.5)) / 2)
    close(slope, [0.125, 0.125, -1])
    _, slope = both(flat.topr, tokens([1.5, 1.2, 0.1], [-1, -1, 2]))
    close(slope, [0.5, 0.5, -1])  # product above 1 held at 1; a reward >= 0 always weighs 1


def test_scalerl_averages_groups() -> None:
    value, slope = both(flat.scalerl, tokens([1.5, 0.5, 8], [1, -1, 1], group=[0, 0, 1]))
    close(value, ((-1.5 * log(0.75) + 0.5 * log(0.25)) / 2 - 5 * log(4)) / 2)
    close(slope, [-1.5 / 4, 0.5 / 4, -5 / 2])


def test_aipo_caps_the_weight_and_keeps_the_gradient() -> None:
    value, slope = both(flat.aipo, tokens([1.5, 0.5, 8], [1, -1, 1]))
    close(value, (-1.5 * log(0.75) + 0.5 * log(0.25) - 4 * log(4)) / 3)
    close(slope, [-0.5, 0.5 / 3, -4 / 3])


def test_prime_rl_drops_by_probability_and_penalises_every_token() -> None:
    case = tokens([1.5, 1.5, 0.5], [1, -1, 0])  # d = +0.25, +0.25, -0.25
    value, slope = both(flat.prime_rl, case)
    close(value, (1.5 + 1e-3 * (2 * log(1.5) ** 2 + log(2) ** 2)) / 3)
    close(slope, [2e-3 * log(1.5) / 3, (1.5 + 2e-3 * log(1.5)) / 3, 2e-3 * log(0.5) / 3])
    _, slope = both(flat.prime_rl, tokens([1.3, 0.7, 0.5], [1, -1, 1]), penalty=0.0)
    close(slope, [-1.3 / 3, 0.7 / 3, -0.5 / 3])


def test_prime_rl_ipo_is_symmetric() -> None:
    value, slope = both(flat.prime_rl_ipo, tokens([1.1, 0.7, 1.3], [1, 1, -1]))
    close(value, (-1.1 + 1e-3 * (log(1.1) ** 2 + log(0.7) ** 2 + log(1.3) ** 2)) / 3)
    close(slope, [(-1.1 + 2e-3 * log(1.1)) / 3, 2e-3 * log(0.7) / 3, 2e-3 * log(1.3) / 3])


def test_dppo_kl_masks_only_what_moves_away() -> None:
    close(flat.binary_kl(np.log([0.5]), np.log([0.75])), 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25))
    case = tokens([1.5, 1.5, 1.1], [1, -1, 1])  # divergences 0.144, 0.144, 0.005
    value, slope = both(flat.dppo_kl, case, length=10.0)
    close(value, (1.5 * log(0.75) - 1.1 * log(0.55)) / 20)
    close(slope, [0, 1.5 / 20, -1.1 / 20])


def test_opsm_drops_negative_sequences_and_keeps_the_denominator() -> None:
    case = tokens([0.9, 0.5, 0.5], [-1, -1, 1])  # mean log(mu / pi) of sequence 0: 0.399
    value, slope = both(flat.opsm, case, delta=0.3)
    close(value, -0.5 / 3)
    close(slope, [0, 0, -0.5 / 3])
    value, slope = both(flat.opsm, case, delta=0.5)
    close(value, (0.9 + 0.8 - 0.5) / 3)
    close(slope, [0.3, 0, -0.5 / 3])


def test_trpo_penalty_and_its_controller() -> None:
    value, slope = both(flat.trpo_penalty, tokens([2, 1, 0.5], [1, -1, 1]), beta=3.0)
    close(value, (-2 + 3 * (1 - log(2)) + 1 - 0.5 + 3 * (-0.5 + log(2))) / 3)
    close(slope, [(-2 + 3 * 1) / 3, 1 / 3, (-0.5 - 3 * 0.5) / 3])
    assert [flat.adapt(1.0, kl, 0.1) for kl in (0.2, 0.1, 0.05)] == [2.0, 1.0, 0.5]


def test_gdpo() -> None:
    parts = np.array([[1.0, 5.0], [0.0, 5.0], [1.0, 2.0], [0.0, 4.0]])
    h = 0.5 / (sqrt(0.5) + 1e-6)
    g = 1.0 / (sqrt(2.0) + 1e-6)
    total = np.array([h, -h, h - 2 * g, -h + 2 * g])  # the second part is constant in the first group
    expected = total / sqrt((total**2).sum() / 3 + 1e-6)
    close(flat.gdpo(parts, [1.0, 2.0], np.array([0, 0, 1, 1])), expected)
    close(flat.gdpo(np.ones((3, 1)), [1.0], np.array([0, 0, 1])), 0)


def test_extreme_ratios_stay_finite() -> None:
    case = (np.array([-0.1, -900.0, -0.1]), np.array([-900.0, -0.1, -0.1]), np.array([-900.0, -0.1, -0.1]))
    ids = (np.array([1.0, 1.0, -1.0]), SEQ, ZERO)
    for function, kw in [
        (flat.gspo_token, {}),
        (flat.gmpo, {}),
        (flat.sapo, {}),
        (flat.kl_cov, {"chosen": np.ones(3, dtype=bool)}),
        (flat.topr, {}),
        (flat.scalerl, {}),
        (flat.aipo, {}),
        (flat.prime_rl, {}),
        (flat.prime_rl_ipo, {}),
        (flat.dppo_kl, {"length": 3.0}),
        (flat.opsm, {"delta": 0.5}),
        (flat.trpo_penalty, {"beta": 1.0}),
    ]:
        assert np.isfinite(function(*case, *ids, **kw))


def load(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def flatten(batch: Batch, advantage: Array) -> Any:
    """The batch's policy tokens as (new, old, sampler, adv, seq, group)."""
    row, at = np.nonzero(batch.mask)
    old = batch.logp_new if batch.logp_old is None else batch.logp_old
    mu = old if batch.logp_rollout is None else batch.logp_rollout
    groups = np.zeros(len(batch.mask), dtype=np.int64) if batch.group_ids is None else batch.group_ids
    per_token = advantage[row] if advantage.ndim == 1 else advantage[row, at]
    return batch.logp_new[row, at], old[row, at], mu[row, at], per_token, row, groups[row]


@pytest.mark.parametrize("name", ["gspo", "ragged/gspo"])
def test_gspo_golden(name: str) -> None:
    """With one advantage per sequence GSPO-token has GSPO's value and gradient."""
    golden = load(name)
    batch, expected = Batch.from_golden(golden["inputs"]), golden["expected"]
    value, slope = both(flat.gspo_token, flatten(batch, np.array(expected["advantages"], dtype=np.float64)))
    close(value, expected["loss"])
    close(slope, np.array(expected["grad_logp_new"])[batch.mask])


@pytest.mark.parametrize(
    ("name", "function", "kw"),
    [
        ("prime_rl_2025_double_sided", flat.prime_rl, {"penalty": 0.0}),
        ("dppo_binary_tv", flat.dppo_kl, {"length": 4.0}),
        ("ragged/dppo_binary_tv", flat.dppo_kl, {"length": 8.0}),
    ],
)
def test_relatives_agree_on_tokens_both_keep(name: str, function: Callable[..., float], kw: dict[str, float]) -> None:
    """These files hold another keep rule of the same loss: tokens alive under both have one gradient."""
    golden = load(name)
    batch, expected = Batch.from_golden(golden["inputs"]), golden["expected"]
    slope = flat.gradient(function, *flatten(batch, np.array(expected["advantages"], dtype=np.float64)), **kw)
    known = np.array(expected["grad_logp_new"])[batch.mask]
    shared = (slope != 0) & (known != 0)
    assert shared.sum() >= 8
    close(slope[shared], known[shared])


PAIRS: dict[str, tuple[Callable[..., float], dict[str, Any], Callable[[Batch, Array], Loss]]] = {
    "gspo_token": (flat.gspo_token, {}, rows.gspo_token),
    "gmpo": (flat.gmpo, {}, rows.gmpo),
    "sapo": (flat.sapo, {}, rows.sapo),
    "topr": (flat.topr, {}, rows.topr),
    "scalerl": (flat.scalerl, {}, rows.scalerl),
    "aipo": (flat.aipo, {}, lambda b, a: rows.aipo(b, a, cap=4.0)),
    "prime_rl": (flat.prime_rl, {}, rows.prime_rl),
    "prime_rl_ipo": (flat.prime_rl_ipo, {}, lambda b, a: rows.prime_rl(b, a, kind="ipo")),
    "dppo_kl": (flat.dppo_kl, {"length": 4.0}, lambda b, a: rows.dppo(b, a, constant=4.0)),
    "trpo_penalty": (flat.trpo_penalty, {"beta": 0.7}, lambda b, a: rows.trpo(b, a, beta=0.7)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("file", ["decoupled_ppo", "ragged/decoupled_ppo"])
def test_flat_equals_padded(name: str, file: str) -> None:
    batch = Batch.from_golden(load(file)["inputs"])
    advantage = padded_advantages.standardised(batch.rewards, batch.group_ids, batch.mask)
    function, kw, padded = PAIRS[name]
    value, slope = both(function, flatten(batch, advantage), **kw)
    expected, expected_slope = evaluate(padded(batch, advantage), batch)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(slope, expected_slope[batch.mask], rtol=1e-6, atol=1e-8)

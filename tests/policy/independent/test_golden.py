"""The oracle reproduces every golden vector of its methods to 1e-9, with NaN put on every masked token."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import advantages as adv
from . import corrections, rows
from . import token_losses as tok
from .arrays import Array, Batch, Loss, evaluate

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def load(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def dirty(inputs: dict[str, Any]) -> Batch:
    """The batch with NaN wherever the mask is False."""
    batch = Batch.from_golden(inputs)
    changes: dict[str, Array] = {}
    for name in ("logp_new", "logp_old", "logp_rollout", "logp_ref"):
        values = getattr(batch, name)
        if values is not None:
            changes[name] = np.where(batch.mask, values, np.nan)
    return replace(batch, **changes)


def check(batch: Batch, loss: Loss, expected: float, gradient: list[list[float]] | None) -> None:
    value, slope = evaluate(loss, batch)
    assert value == pytest.approx(expected, rel=0, abs=1e-9)
    if gradient is not None:
        np.testing.assert_allclose(slope, gradient, rtol=0, atol=1e-9)


def constant(config: dict[str, Any]) -> float:
    return float(config.get("norm_const", 4.0))


ROWS: dict[str, Callable[[Batch, dict[str, Any]], Loss]] = {
    "grpo": lambda b, c: rows.plus(
        (1.0, rows.clipped(b, how="sequence_mean_token_mean")),
        (c["kl_beta"], rows.kl_loss(b, "k3", "sequence_mean_token_mean")),
    ),
    "dr_grpo": lambda b, c: rows.clipped(b, default="centred", how="constant", constant=constant(c)),
    "dapo": lambda b, c: rows.clipped(b, low=c["eps_low"], high=c["eps_high"]),
    "maxrl": lambda b, c: rows.clipped(b, adv.maxrl(b.rewards, b.group_ids, b.mask)),
    "gspo": lambda b, c: rows.gspo(b),
    "gspo:token": lambda b, c: rows.gspo_token(b),
    "cispo": lambda b, c: rows.cispo(b, cap=c["ratio_cap"]),
    "decoupled_ppo": lambda b, c: rows.decoupled(b),
    "dppo_binary_tv": lambda b, c: rows.dppo(b, kind="tv", delta=c["delta_high"], cap=20.0, constant=constant(c)),
    "rloo_reinforce": lambda b, c: rows.reinforce(b),
    "rloo": lambda b, c: rows.reinforce(b),
    "prime_rl_2025_double_sided": lambda b, c: rows.double_sided(b),
    "two_sided_grpo": lambda b, c: rows.clipped(b, default="centred", delta=c["delta"]),
}
PLAIN = [name for name in ROWS if name != "rloo"]
RAGGED = ["grpo", "dr_grpo", "dapo", "maxrl", "gspo", "gspo:token", "cispo", "decoupled_ppo", "dppo_binary_tv", "rloo"]


@pytest.mark.parametrize("name", [*PLAIN, *(f"ragged/{name}" for name in RAGGED)])
def test_method(name: str) -> None:
    file, row = name.split(":")[0], name.removeprefix("ragged/")
    golden = load(file)
    batch = dirty(golden["inputs"])
    check(batch, ROWS[row](batch, golden["config"]), golden["expected"]["loss"], golden["expected"]["grad_logp_new"])


@pytest.mark.parametrize("name", ["dapo", "ragged/dapo"])
def test_prompt_average(name: str) -> None:
    golden = load(name)
    batch = dirty(golden["inputs"])
    expected = golden["expected"]
    loss = rows.clipped(batch, low=0.2, high=0.28, how="prompt_mean")
    check(batch, loss, expected["loss_prompt_mean"], expected["grad_logp_new_prompt_mean"])


AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean_token_mean",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "prompt-mean": "prompt_mean",
    "token-sum": "token_sum",
}


@pytest.mark.parametrize("name", ["aggregations", "ragged/aggregations"])
def test_aggregations(name: str) -> None:
    golden = load(name)
    batch = dirty(golden["inputs"])
    for key, expected in golden["expected"]["results"].items():
        how, size = AGGREGATIONS.get(key, "constant"), 1.0
        if how == "constant":
            size = float(key.split("(")[1].rstrip(")"))
        check(batch, rows.clipped(batch, how=how, constant=size), expected["loss"], expected["grad_logp_new"])


def test_ppo_dual_clip() -> None:
    golden = load("ppo_gae_dualclip")
    batch = dirty(golden["inputs"])
    expected = golden["expected"]
    loss = rows.clipped(batch, np.asarray(expected["advantages"]), dual=3.0)
    check(batch, loss, expected["loss"], expected["grad_logp_new"])
    np.testing.assert_allclose(
        adv.whiten_tokens(np.asarray(expected["advantages"]), batch.mask), expected["whitened_advantages"], atol=1e-9
    )


def test_clip_cov() -> None:
    golden = load("clip_cov")
    batch = dirty(golden["inputs"])
    config, expected = golden["config"], golden["expected"]
    a = rows.token_advantage(batch, None, "standardised")
    dropped = tok.clip_cov_candidates(batch.logp_new, batch.logp_old, a, batch.mask, config["cov_lb"], config["cov_ub"])
    np.testing.assert_allclose(tok.covariance(batch.logp_new, a, batch.mask), expected["cov"], atol=1e-9)
    assert dropped == {(int(i), int(t)) for i, t in np.argwhere(np.asarray(expected["dropped"]) > 0)}
    check(batch, rows.clip_cov(batch, dropped), expected["loss"], expected["grad_logp_new"])


KL = {"k1": "k1", "k2": "k2", "k3": "k3", "k3_times_ratio": "k3_ratio", "sg_ratio_times_k2": "k2_ratio"}


@pytest.mark.parametrize("name", KL)
def test_kl_as_loss(name: str) -> None:
    golden = load("kl_estimators")
    batch = dirty(golden["inputs"])
    expected = golden["expected"]["estimators"][name]
    check(batch, rows.kl_loss(batch, KL[name]), expected["loss"], expected["grad_logp_new"])


def variant_weights(name: str, batch: Batch) -> Array:
    old, mu, mask = batch.logp_old, batch.logp_rollout, batch.mask
    whole = corrections.truncated(old, mu, mask, None)
    geometric = corrections.geometric_keep(old, mu, mask, 0.99, 1.01)
    tis = corrections.truncated(old, mu, mask, 2.0)
    return {
        "token_tis_C2": lambda: tis,
        "token_clip_0.5_2": lambda: corrections.clipped(old, mu, mask, 0.5, 2.0),
        "icepop_0.5_5": lambda: corrections.icepop(old, mu, mask, 0.5, 5.0),
        "token_mis_mask_0.5_2": lambda: corrections.icepop(old, mu, mask, 0.5, 2.0),
        "seq_tis_C2": lambda: corrections.sequence_truncated(old, mu, mask, 2.0),
        "seq_mis_0.5_2": lambda: corrections.sequence_masked(old, mu, mask, 0.5, 2.0),
        "geo_rs_0.99_1.01_raw_token_is": lambda: whole * geometric,
        "geo_rs_0.99_1.01_no_is": lambda: geometric,
        "token_tis_C2_with_veto_1e-4": lambda: tis * corrections.veto_keep(old, mu, mask, 1e-4),
        "outlier_seq_mask_1e-4_100": lambda: whole * corrections.veto_keep(old, mu, mask, 1e-4, 100.0),
        "token_tis_C2_batch_normalised": lambda: corrections.batch_normalised(tis, mask),
    }[name]()


@pytest.mark.parametrize("name", ["mismatch_corrections", "ragged/mismatch_corrections"])
def test_corrections(name: str) -> None:
    golden = load(name)
    batch = dirty(golden["inputs"])
    variants = golden["expected"]["variants"]
    assert len(variants) == 11
    for key, expected in variants.items():
        weights = variant_weights(key, batch)
        np.testing.assert_allclose(weights, np.where(batch.mask, expected["weights"], 0.0), atol=1e-9, err_msg=key)
        if "loss" in expected:
            check(batch, rows.clipped(batch, weights=weights), expected["loss"], expected["grad_logp_new"])
        if "loss_if_denominator_is_kept_tokens" in expected:
            check(
                batch,
                rows.clipped(batch, weights=weights, kept_denominator=True),
                expected["loss_if_denominator_is_kept_tokens"],
                expected.get("grad_logp_new_if_denominator_is_kept_tokens"),
            )


@pytest.mark.parametrize("name", ["advantages", "ragged/advantages"])
def test_advantages(name: str) -> None:
    golden = load(name)
    inputs = golden["inputs"]
    mask = np.asarray(inputs["mask"]) > 0
    rewards = np.where(mask.any(axis=1), np.asarray(inputs["rewards"], dtype=np.float64), np.nan)
    groups = np.asarray(inputs["group_ids"])
    greedy = np.asarray(inputs.get("greedy_rewards", []), dtype=np.float64)
    args = (rewards, groups, mask)
    computed: dict[str, Callable[[], Array]] = {
        "grpo_ddof1_eps1e6": lambda: adv.standardised(*args),
        "grpo_ddof0_eps1e6": lambda: adv.standardised(*args, ddof=0),
        "grpo_ddof1_eps1e4": lambda: adv.standardised(*args, eps=1e-4),
        "group_mean_std_ddof1_eps1e6": lambda: adv.standardised(*args),
        "group_mean_std_ddof0_eps1e6": lambda: adv.standardised(*args, ddof=0),
        "group_mean_std_ddof1_eps1e4": lambda: adv.standardised(*args, eps=1e-4),
        "dr_grpo": lambda: adv.centred(*args),
        "group_mean": lambda: adv.centred(*args),
        "rloo": lambda: adv.leave_one_out(*args),
        "rloo_identity_G_over_Gm1": lambda: adv.leave_one_out(*args),
        "leave_one_out": lambda: adv.leave_one_out(*args),
        "remax": lambda: adv.remax(rewards, greedy, mask),
        "maxrl": lambda: adv.maxrl(*args),
        "maxrl_eps0": lambda: adv.maxrl(*args),
        "maxrl_eps1e6": lambda: adv.maxrl(*args, eps=1e-6),
        "batch_std_ddof0": lambda: adv.batch_std(*args),
        "batch_std_ddof1": lambda: adv.batch_std(*args, ddof=1),
        "opo_length_weighted": lambda: adv.opo(*args),
        "grpo_passk_max_minus_second": lambda: adv.second_best(*args),
        "reinforcepp_token": lambda: adv.reinforce_plus_plus(rewards, mask),
        "reinforcepp_baseline_token": lambda: adv.reinforce_plus_plus_baseline(*args),
    }
    for key, expected in golden["expected"].items():
        np.testing.assert_allclose(computed[key](), expected, atol=1e-9, err_msg=key)


def test_pass_at_k_training() -> None:
    for row in load("passk_training")["expected"]["rows"]:
        n, c, k = row["n"], row["c"], row["k"]
        rewards = np.array([1.0] * c + [0.0] * (n - c))
        got = adv.pass_at_k(rewards, np.zeros(n, dtype=np.int64), np.ones((n, 1), dtype=bool), k)
        expected = [row["adv_pos"]] * c + [row["adv_neg"]] * (n - c)
        np.testing.assert_allclose(got, expected, atol=1e-9, err_msg=str((n, c, k)))

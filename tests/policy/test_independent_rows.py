"""Every policy-gradient row against the numpy implementation written from its formula, on random ragged batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.policy.adaptive import adapted_weight
from posttrain.policy.advantages import Attempts, sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.covariance import chosen_by_covariance
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import ROWS, algorithm_row
from posttrain.settings.objective import Correction, ObjectiveSpec

from .independent import advantages as oracle_advantages
from .independent import corrections, rows
from .independent.arrays import Batch, Loss, evaluate, per_token

LENGTH = 16


def random_inputs(seed: int, counts: list[int]) -> dict[str, Any]:
    """Rows of ``counts`` tokens in interleaved groups of uneven sizes, one in five tokens masked and holding NaN."""
    random = np.random.default_rng(seed)
    size, width = len(counts), max(counts)
    mask = (np.arange(width) < np.array(counts)[:, None]) & (random.random((size, width)) > 0.2)

    def column(base: np.ndarray, spread: float) -> np.ndarray:
        return np.where(mask, base + spread * random.standard_normal((size, width)), np.nan)

    new = np.where(mask, -np.abs(random.standard_normal((size, width))) - 0.05, np.nan)
    return {
        "logp_new": new,
        "logp_old": column(new, 0.4),
        "logp_rollout": column(new, 0.5),
        "logp_ref": column(new, 0.6),
        "mask": mask,
        "rewards": random.choice([0.0, 0.5, 1.0], size),
        "group_ids": random.integers(0, max(1, size // 3), size),
        "parts": random.choice([0.0, 0.3, 1.0], (size, 2)),
    }


def ours(inputs: dict[str, Any], spec: ObjectiveSpec, values: np.ndarray) -> tuple[float, np.ndarray]:
    mask = np.asarray(inputs["mask"])
    size, width = mask.shape
    columns = {n: torch.tensor(inputs[n]).reshape(-1) for n in ("logp_new", "logp_old", "logp_rollout", "logp_ref")}
    flat = torch.tensor(mask).reshape(-1)
    advantages = torch.tensor(per_token(values, mask)).reshape(-1)
    chosen = torch.zeros_like(flat)
    if spec.trust_region.chooses_by_covariance:
        lp, old = (columns[n].numpy()[flat.numpy()] for n in ("logp_new", "logp_old"))
        keys = np.arange(lp.size, dtype=np.uint64)
        picked = chosen_by_covariance(lp, lp - old, advantages.numpy()[flat.numpy()], keys, spec.trust_region, 0)
        chosen[flat] = torch.tensor(picked)
    batch = TokenBatch(
        columns["logp_new"].requires_grad_(),
        columns["logp_old"],
        advantages,
        flat,
        torch.arange(size).repeat_interleave(width),
        sampler_logprobs=columns["logp_rollout"],
        reference_logprobs=columns["logp_ref"],
        covariance_chosen=chosen,
    )
    totals = step_totals(
        torch.tensor(mask.sum(1)), torch.tensor(np.unique(inputs["group_ids"], return_inverse=True)[1])
    )
    loss = objective(batch, totals, spec.for_generation_budget(LENGTH)).loss
    loss.backward()
    assert batch.logprobs.grad is not None
    return loss.item(), batch.logprobs.grad.numpy().reshape(mask.shape)


def check(loss: float, gradient: np.ndarray, oracle: Loss, batch: Batch) -> None:
    expected_loss, expected = evaluate(oracle, batch, step=1e-5)
    assert loss == pytest.approx(expected_loss, abs=1e-9)
    # Within a step of a bound a difference straddles both sides of a kink: there two step sizes disagree.
    smooth = np.isclose(evaluate(oracle, batch, step=2e-6)[1], expected, rtol=0, atol=1e-6)
    assert smooth.mean() > 0.9
    np.testing.assert_allclose(gradient[smooth], expected[smooth], rtol=0, atol=1e-8 + 1e-7 * np.abs(expected).max())


def token_weighted(batch: Batch, a: np.ndarray) -> Loss:
    keep = corrections.opsm_keep(batch.logp_new, batch.logp_rollout, batch.mask, a, 0.5)
    return rows.clipped(batch, a, weights=keep)


ORACLES: dict[str, Callable[[Batch, np.ndarray], Loss]] = {
    "reinforce": lambda b, a: rows.reinforce(b, a),
    "reinforce_loo": lambda b, a: rows.reinforce(b, a),
    "remax": lambda b, a: rows.reinforce(b, a),
    "reinforce_pp": lambda b, a: rows.clipped(b, a),
    "reinforce_pp_baseline": lambda b, a: rows.clipped(b, a),
    "grpo": lambda b, a: rows.clipped(b, a, how="sequence_mean_token_mean"),
    "dr_grpo": lambda b, a: rows.clipped(b, a, how="constant", constant=LENGTH),
    "dapo": lambda b, a: rows.clipped(b, a, high=0.28),
    "maxrl": lambda b, a: rows.clipped(b, a),
    "opo": lambda b, a: rows.reinforce(b, a, how="token_mean"),
    "two_sided_grpo": lambda b, a: rows.clipped(b, a, delta=4.0),
    "pass_at_k": lambda b, a: rows.clipped(b, a, high=0.28),
    "best_lead": lambda b, a: rows.clipped(b, a),
    "gdpo": lambda b, a: rows.clipped(b, a),
    "gspo": lambda b, a: rows.gspo(b, a),
    "gspo_token": lambda b, a: rows.gspo_token(b, a),
    "gmpo": lambda b, a: rows.gmpo(b, a),
    "topr": lambda b, a: rows.topr(b, a),
    "cispo": lambda b, a: rows.cispo(b, a),
    "aipo": lambda b, a: rows.aipo(b, a, cap=4.0),
    "scalerl": lambda b, a: rows.scalerl(b, a),
    "dppo_tv": lambda b, a: rows.dppo(b, a, kind="tv", delta=0.15, constant=LENGTH),
    "dppo_kl": lambda b, a: rows.dppo(b, a, constant=LENGTH),
    "prime_rl": lambda b, a: rows.prime_rl(b, a),
    "prime_rl_ipo": lambda b, a: rows.prime_rl(b, a, kind="ipo"),
    "prime_rl_2025": lambda b, a: rows.double_sided(b, a),
    "decoupled_ppo": lambda b, a: rows.decoupled(b, a, cap=5.0),
    "grpo_opsm": token_weighted,
    "sapo": lambda b, a: rows.sapo(b, a),
    "trpo_penalty": lambda b, a: rows.trpo(b, a),
    "kl_cov": lambda b, a: rows.kl_cov(b, 1, a),
}
ELSEWHERE = {"clip_cov", "on_policy_distillation", "gkd", "ppo"}
"""Clip-Cov draws at random: its golden vector fixes the choice. The others are compared where they are defined."""

batches = st.tuples(st.integers(0, 100_000), st.lists(st.integers(1, 6), min_size=2, max_size=8))


def test_no_row_is_left_out():
    assert set(ORACLES) | ELSEWHERE >= set(ROWS)
    assert not set(ORACLES) & ELSEWHERE


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=25, deadline=None)
@given(batches)
def test_loss_and_gradient(name: str, drawn: tuple[int, list[int]]) -> None:
    inputs = random_inputs(*drawn)
    batch = Batch.from_golden(inputs)
    if not batch.mask.any():
        return
    values = np.random.default_rng(drawn[0] + 1).normal(size=len(drawn[1]))
    loss, gradient = ours(inputs, algorithm_row(name).spec, values)
    check(loss, gradient, ORACLES[name](batch, values), batch)


ADVANTAGES: dict[str, Callable[[Batch], np.ndarray]] = {
    "reinforce_loo": lambda b: oracle_advantages.leave_one_out(b.rewards, b.group_ids, b.mask),
    "reinforce_pp": lambda b: oracle_advantages.reinforce_plus_plus(b.rewards, b.mask),
    "reinforce_pp_baseline": lambda b: oracle_advantages.reinforce_plus_plus_baseline(b.rewards, b.group_ids, b.mask),
    "grpo": lambda b: oracle_advantages.standardised(b.rewards, b.group_ids, b.mask),
    "dr_grpo": lambda b: oracle_advantages.centred(b.rewards, b.group_ids, b.mask),
    "maxrl": lambda b: oracle_advantages.maxrl(b.rewards, b.group_ids, b.mask, 1e-6),
    "opo": lambda b: oracle_advantages.opo(b.rewards, b.group_ids, b.mask),
    "scalerl": lambda b: oracle_advantages.batch_std(b.rewards, b.group_ids, b.mask, 0, 1e-6),
    "best_lead": lambda b: oracle_advantages.second_best(b.rewards, b.group_ids, b.mask),
}


def our_advantages(inputs: dict[str, Any], name: str) -> np.ndarray:
    mask = np.asarray(inputs["mask"])
    attempts = Attempts(mask.sum(1), None, inputs["rewards"] >= 1.0, inputs["parts"], np.array([0.7, 0.2]))
    spec = algorithm_row(name).spec.advantage
    return sequence_advantages(inputs["rewards"], inputs["group_ids"], spec, mask.any(1), attempts).values


@pytest.mark.parametrize("name", ADVANTAGES)
@settings(max_examples=60, deadline=None)
@given(batches)
def test_advantages(name: str, drawn: tuple[int, list[int]]) -> None:
    inputs = random_inputs(*drawn)
    batch = Batch.from_golden(inputs)
    expected = ADVANTAGES[name](batch)
    values = our_advantages(inputs, name)
    if expected.ndim == 2:
        values = per_token(values, batch.mask)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(batches)
def test_gdpo_advantages(drawn: tuple[int, list[int]]) -> None:
    inputs = random_inputs(*drawn)
    mask = np.asarray(inputs["mask"])
    expected = oracle_advantages.gdpo(inputs["parts"], [0.7, 0.2], inputs["group_ids"], mask)
    np.testing.assert_allclose(our_advantages(inputs, "gdpo"), expected, rtol=0, atol=1e-9)


VARIANTS: dict[str, tuple[Correction, Callable[[Batch], np.ndarray]]] = {
    "k3": (
        Correction(reject="k3", reject_high=0.1),
        lambda b: corrections.divergence_keep(b.logp_old, b.logp_rollout, b.mask, "k3", 0.1),
    ),
    "veto": (Correction(veto=0.5), lambda b: corrections.veto_keep(b.logp_old, b.logp_rollout, b.mask, 0.5)),
    "sequence mask": (
        Correction(weight="sequence", rule="mask", low=0.5, high=2.0),
        lambda b: corrections.sequence_masked(b.logp_old, b.logp_rollout, b.mask, 0.5, 2.0),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=40, deadline=None)
@given(batches)
def test_corrections(name: str, drawn: tuple[int, list[int]]) -> None:
    inputs = random_inputs(*drawn)
    batch = Batch.from_golden(inputs)
    if not batch.mask.any():
        return
    correction, weights = VARIANTS[name]
    values = np.random.default_rng(drawn[0] + 1).normal(size=len(drawn[1]))
    spec = algorithm_row("dapo").spec.override(correction=correction)
    loss, gradient = ours(inputs, spec, values)
    check(loss, gradient, rows.clipped(batch, values, high=0.28, weights=weights(batch)), batch)


@given(st.floats(1e-4, 1e4), st.floats(0, 10), st.floats(1e-3, 1))
def test_adaptive_weight(weight: float, divergence: float, target: float) -> None:
    assert adapted_weight(weight, divergence, target) == rows.adapt_beta(weight, divergence, target)

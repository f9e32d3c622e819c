"""Extreme inputs give finite, documented results in every row, in fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.errors import InputError, NonFiniteError
from posttrain.policy.advantages import Attempts, sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import ROWS
from posttrain.settings.objective import Advantage, ObjectiveSpec

INFINITY = float("inf")
CASES = {
    "log ratio of 89": ([-1.0, -2.0], [-90.0, -2.0], [-90.0, -2.0]),
    "log ratio of -89": ([-90.0, -2.0], [-1.0, -2.0], [-1.0, -2.0]),
    "probability 1": ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
    "impossible now": ([-INFINITY, -2.0], [-1.0, -2.0], [-1.0, -2.0]),
    "impossible before": ([-1.0, -2.0], [-INFINITY, -2.0], [-1.0, -2.0]),
    "impossible for the sampler": ([-1.0, -2.0], [-1.0, -2.0], [-INFINITY, -2.0]),
    "impossible everywhere": ([-INFINITY, -2.0], [-INFINITY, -2.0], [-INFINITY, -2.0]),
}


def batch_of(new: list[float], old: list[float], sampler: list[float], advantage: float) -> TokenBatch:
    return TokenBatch(
        torch.tensor(new, requires_grad=True),
        torch.tensor(old),
        torch.full((len(new),), advantage),
        torch.ones(len(new), dtype=torch.bool),
        torch.zeros(len(new), dtype=torch.int64),
        sampler_logprobs=torch.tensor(sampler),
        covariance_chosen=torch.tensor([True, *[False] * (len(new) - 1)]),
    )


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ROWS)
def test_loss_gradient_and_statistics_are_finite(name: str, case: str, advantage: float) -> None:
    batch = batch_of(*CASES[case], advantage)
    spec = ROWS[name].spec.for_generation_budget(16)
    result = objective(batch, step_totals(torch.tensor([2]), torch.tensor([0])), spec)
    result.loss.backward()
    assert torch.isfinite(result.loss)
    assert batch.logprobs.grad is not None
    assert torch.isfinite(batch.logprobs.grad).all()
    values = result.statistics.finalize(2)
    bounded = {k: v for k, v in values.items() if "sampled_entropy" not in k and "kl" not in k and "ratio_" not in k}
    assert all(np.isfinite(v) for v in bounded.values()), bounded


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_without_a_trained_token_has_loss_and_gradient_zero(name: str) -> None:
    nan = float("nan")
    batch = batch_of([nan, nan], [nan, nan], [nan, nan], nan)
    masked = TokenBatch(
        batch.logprobs,
        batch.old_logprobs,
        batch.advantages,
        torch.zeros(2, dtype=torch.bool),
        batch.sequence_index,
        sampler_logprobs=batch.sampler_logprobs,
        covariance_chosen=batch.covariance_chosen,
    )
    spec = ROWS[name].spec.for_generation_budget(16)
    result = objective(masked, step_totals(torch.tensor([0]), torch.tensor([0])), spec)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == [0.0, 0.0]


SPECS = {
    name: row.spec.advantage
    for name, row in ROWS.items()
    if row.spec.advantage.baseline != "critic" and row.spec.distillation == ObjectiveSpec().distillation
}


def attempts(size: int) -> Attempts:
    return Attempts(np.full(size, 3), np.zeros(size), np.zeros(size, bool), np.zeros((size, 2)), np.ones(2))


@pytest.mark.parametrize("name", SPECS)
def test_no_sequences_and_a_group_of_one(name: str) -> None:
    empty = sequence_advantages(np.empty(0), [], SPECS[name], None, attempts(0)).values
    assert empty.shape == (0,)
    alone = sequence_advantages(np.ones(1), ["t"], SPECS[name], None, attempts(1)).values
    assert np.isfinite(alone).all()
    if SPECS[name].compares_attempts:
        assert alone.tolist() == [0.0]


@pytest.mark.parametrize("name", [n for n in SPECS if SPECS[n].compares_attempts])
def test_equal_rewards_are_told_by_comparison_not_by_their_std(name: str) -> None:
    """Sums of 0.1 and 0.2 differ in the last bit between orders of addition, and equal ones do not differ at all."""
    rewards = np.full(7, 0.1 + 0.2)
    assert not sequence_advantages(rewards, ["t"] * 7, SPECS[name], None, attempts(7)).values.any()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("bad", [float("nan"), INFINITY, -INFINITY])
def test_a_reward_that_is_not_finite_is_refused_unless_it_is_not_valid(name: str, bad: float) -> None:
    rewards = np.array([1.0, bad, 0.0])
    with pytest.raises(NonFiniteError, match="row 1"):
        sequence_advantages(rewards, ["t"] * 3, SPECS[name], None, attempts(3))
    valid = np.array([True, False, True])
    values = sequence_advantages(rewards, ["t"] * 3, SPECS[name], valid, attempts(3)).values
    assert np.isfinite(values).all()
    assert values[1] == 0.0


def test_negative_rewards_under_a_division_by_their_mean_stop_the_run() -> None:
    with pytest.raises(InputError, match="flips signs"):
        sequence_advantages(np.array([-1.0, 1.0]), ["t"] * 2, Advantage(scale="group_reward_mean"))

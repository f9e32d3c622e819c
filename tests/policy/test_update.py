"""One batch: how it is cut, ordered and packed changes no gradient; silent rows count, and one policy is proximal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policies import largest_gap, make_groups, make_model, make_trainer

from posttrain.policy.masters import StepResult
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.statistics import Total
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, UpdateResult, plan_blocks, update_policy
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import ObjectiveSpec
from posttrain.trajectory import RecordError, Trajectory

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6]), (9, [4, 4, 12, 1]), (3, [2, 2, 5, 5])]
ADVANTAGES = [1.2, -0.4, -0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.7, -0.7, 0.3, -0.3, 2.0, -1.0, -1.0, 0.0]
WIDE = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)
ROWS = ("grpo", "dr_grpo", "dapo", "reinforce_loo")


class Probe(Trainer):
    """Keeps the summed gradient of every step instead of applying it."""

    steps: list[dict[str, torch.Tensor]]

    @classmethod
    def make(cls, kind: str = "llama") -> Probe:
        trainer = make_trainer(make_model(kind))
        trainer.__class__ = cls
        trainer.steps = []  # type: ignore[attr-defined]
        return trainer  # type: ignore[return-value]

    def step(self) -> StepResult:
        self.steps.append(
            {n: torch.zeros_like(m) if m.grad is None else m.grad.clone() for n, m in self.masters.tensors.items()}
        )
        return StepResult(0.0, 0.0, self.version)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def rows_of(advantages: Sequence[float], order: Sequence[int] | None = None) -> tuple[list[Trajectory], np.ndarray]:
    rows = [t for g in make_groups(SHAPES, lambda g, m: 0.0) for t in g]
    order = list(range(len(rows))) if order is None else list(order)
    return [rows[i] for i in order], np.array([advantages[i] for i in order])


def run(
    trainer: Trainer,
    plan: UpdatePlan = WIDE,
    order: Sequence[int] | None = None,
    spec: ObjectiveSpec | None = None,
    advantages: Sequence[float] = ADVANTAGES,
    in_loss: np.ndarray | None = None,
) -> tuple[UpdateResult, RowTable]:
    rows, values = rows_of(advantages, order)
    table = RowTable.of(rows, np.ones(len(rows), bool) if in_loss is None else in_loss, [0.0] * len(rows))
    table.set_advantages(values)
    spec = (spec or algorithm_row("grpo").spec).for_generation_budget(16)
    return update_policy(trainer, table, train_sequences(rows), spec, plan), table


@pytest.mark.parametrize("algorithm", ROWS)
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_micro_batches_sharing_and_order_change_no_gradient(kind: str, algorithm: str) -> None:
    spec = algorithm_row(algorithm).spec
    base = Probe.make(kind)
    run(base, spec=spec)
    assert float(max(g.abs().max() for g in base.steps[0].values())) > 1e-4
    random = np.random.default_rng(0)
    for plan in (
        UpdatePlan(1, 1, 1, True),
        UpdatePlan(1, 40, 1600, True),
        UpdatePlan(1, 10_000, 10_000_000, True, share_prompts=False),
        UpdatePlan(1, 25, 625, False, share_prompts=False),
    ):
        for order in (None, random.permutation(16)):
            other = Probe.make(kind)
            run(other, plan, order, spec)
            assert largest_gap(base.steps[0], other.steps[0]) < 2e-5


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(16)), st.integers(1, 120), st.booleans())
def test_any_order_and_any_limit(order: list[int], limit: int, share: bool) -> None:
    base, other = Probe.make(), Probe.make()
    run(base)
    run(other, UpdatePlan(1, limit, limit**2, True, share), order)
    assert largest_gap(base.steps[0], other.steps[0]) < 2e-5


@pytest.mark.parametrize("algorithm", ROWS)
def test_silent_rows_have_no_gradient_but_count_in_every_denominator(algorithm: str) -> None:
    spec = algorithm_row(algorithm).spec
    skipped, computed, without = Probe.make(), Probe.make(), Probe.make()
    result, table = run(skipped, spec=spec)
    full, _ = run(computed, UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=False), spec=spec)
    assert largest_gap(computed.steps[0], skipped.steps[0]) < 1e-5
    assert result.trained_tokens == full.trained_tokens == table.loss_mask.sum()
    assert np.isfinite(table.trainer_logprob[table.loss_mask]).all(), "silent rows are scored all the same"
    # Left out of the batch altogether, the same rows would make every other row weigh more.
    loud = [i for i, a in enumerate(ADVANTAGES) if a != 0]
    rows, values = rows_of(ADVANTAGES, loud)
    table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
    table.set_advantages(values)
    update_policy(without, table, train_sequences(rows), spec.for_generation_budget(16), WIDE)
    assert largest_gap(skipped.steps[0], without.steps[0]) > 0.1


def test_rows_outside_the_loss_count_nowhere() -> None:
    keep = np.array([i % 4 != 1 for i in range(16)])
    masked, absent = Probe.make(), Probe.make()
    result, _ = run(masked, in_loss=keep)
    rows, values = rows_of(ADVANTAGES, np.flatnonzero(keep).tolist())
    table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
    table.set_advantages(values)
    other = update_policy(absent, table, train_sequences(rows), algorithm_row("grpo").spec, WIDE)
    assert result.trained_tokens == other.trained_tokens
    assert largest_gap(absent.steps[0], masked.steps[0]) < 1e-5


def test_several_updates_share_the_policy_before_the_first_as_proximal() -> None:
    trainer = make_trainer(rate=2e-2)
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    make_batch = trainer._token_batch

    def watched(*arguments: Any) -> Any:
        batch = make_batch(*arguments)
        seen.append((batch.logprobs.detach().numpy().copy(), batch.old_logprobs.numpy().copy()))
        return batch

    trainer._token_batch = watched  # type: ignore[method-assign]
    loud = [a or 0.5 for a in ADVANTAGES]
    result, table = run(trainer, UpdatePlan(4, 10_000, 10_000_000, skip_zero_advantage=False), advantages=loud)
    assert len(result.steps) == 4 == trainer.version
    before = make_trainer()
    rows, _ = rows_of(ADVANTAGES)
    fresh = RowTable.of(rows, np.ones(16, bool), [0.0] * 16)
    before.score(plan_blocks(before, train_sequences(rows), WIDE), fresh)
    np.testing.assert_allclose(
        table.trainer_logprob[table.loss_mask], fresh.trainer_logprob[fresh.loss_mask], atol=2e-5
    )
    gaps = [float(np.abs(new - old).max()) for new, old in seen]
    assert gaps[0] < 1e-5
    assert all(gap > 1e-3 for gap in gaps[1:])


def test_with_one_update_the_ratio_is_one_and_nothing_is_scored_twice() -> None:
    trainer = make_trainer()
    result, table = run(trainer)
    statistics = result.statistics.finalize(result.trained_tokens, 1)
    ratios = {k: v for k, v in statistics.items() if "ratio" in k and ("max" in k or "mean" in k)}
    assert ratios
    assert all(v == pytest.approx(1.0, abs=1e-6) or v == pytest.approx(0.0, abs=1e-6) for v in ratios.values())
    assert np.isfinite(table.entropy[table.loss_mask]).all()
    total = sum(prompt + sum(lengths) for prompt, lengths in SHAPES)
    every = sum(prompt * 4 + sum(lengths) for prompt, lengths in SHAPES)
    assert total <= result.packed_tokens <= every


def test_each_update_takes_whole_groups_and_all_are_used_once() -> None:
    probe = Probe.make()
    result, table = run(probe, UpdatePlan(3, 10_000, 10_000_000, skip_zero_advantage=False))
    assert len(result.steps) == 3
    assert result.trained_tokens == table.loss_mask.sum()
    many, _ = run(Probe.make(), UpdatePlan(9, 10_000, 10_000_000, skip_zero_advantage=False))
    assert len(many.steps) == len(SHAPES)


def test_between_is_called_for_every_micro_batch() -> None:
    rows, values = rows_of(ADVANTAGES)
    table = RowTable.of(rows, np.ones(16, bool), [0.0] * 16)
    table.set_advantages(values)
    calls: list[int] = []
    result = update_policy(
        make_trainer(),
        table,
        train_sequences(rows),
        algorithm_row("grpo").spec,
        UpdatePlan(2, 30, 900, True),
        lambda: calls.append(1),
    )
    assert len(calls) == result.micro_batches > 3


def test_a_row_without_sampled_tokens_is_refused() -> None:
    rows, _ = rows_of(ADVANTAGES)
    rows[3].segments.pop()
    with pytest.raises(RecordError, match="g0/3 has no sampled token"):
        RowTable.of(rows, np.ones(16, bool), [0.0] * 16)


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("denominator", ["proximal", "sampler"])
def test_statistics_are_of_every_trained_token_whether_or_not_it_gets_a_backward_pass(
    denominator: str, updates: int
) -> None:
    spec = algorithm_row("grpo").spec
    spec = spec.model_copy(update={"ratio": spec.ratio.model_copy(update={"denominator": denominator})})
    keep = np.array([i not in (3, 9) for i in range(16)])
    found = []
    for skip in (True, False):
        trainer = make_trainer(rate=2e-2)
        result, table = run(trainer, UpdatePlan(updates, 40, 1600, skip), spec=spec, in_loss=keep)
        assert result.statistics.totals[Total.TOKENS] == result.trained_tokens == table.loss_mask.sum()
        assert result.statistics.totals[Total.ENTROPY_TOKENS] == result.trained_tokens
        found.append(result.statistics.finalize(result.trained_tokens, updates))
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-6)
    moved = found[0]["policy/approx_kl"]
    assert moved > 1e-4 if (denominator, updates) != ("proximal", 1) else moved < 1e-8

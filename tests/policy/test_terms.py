"""Terms over whole distributions inside an update: gradient by definition, any cut, prompts of the teacher's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from policies import largest_gap, make_groups, make_model, make_trainer

from posttrain.model.head import HeadSettings
from posttrain.policy.divergence import token_divergence
from posttrain.policy.divergence_head import Divergence
from posttrain.policy.masters import StepResult
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.teacher import Teacher, TeacherBatch
from posttrain.policy.terms import DivergenceTerm
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, UpdateResult, plan_blocks, update_policy
from posttrain.settings.algorithms import algorithm_row
from posttrain.trajectory import Trajectory

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6]), (9, [4, 4, 12, 1])]
SPEC = algorithm_row("reinforce_loo").spec
WIDE = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)
REVERSE = Divergence(1.0)
TEACHER: Any = make_model(seed=5)
OTHER_PROMPTS = {f"g{i}": np.arange(3 + 2 * i, dtype=np.int32) + 20 for i in range(3)}


class Probe(Trainer):
    """Keeps the summed gradient instead of applying it."""

    found: dict[str, torch.Tensor]

    @classmethod
    def make(cls) -> Probe:
        trainer = make_trainer(make_model())
        trainer.__class__ = cls
        return trainer  # type: ignore[return-value]

    def step(self) -> StepResult:
        self.found = {
            n: torch.zeros_like(m) if m.grad is None else m.grad.clone() for n, m in self.masters.tensors.items()
        }
        return StepResult(1.0, 0.0, self.version)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def rows() -> list[Trajectory]:
    return [t for g in make_groups(SHAPES, lambda g, m: 0.0) for t in g]


def run(
    trainer: Trainer,
    plan: UpdatePlan = WIDE,
    prompts: dict[str, np.ndarray] | None = None,
    kind: Divergence = REVERSE,
    weights: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> tuple[UpdateResult, TeacherBatch]:
    data = rows() if order is None else [rows()[i] for i in order]
    table = RowTable.of(data, np.ones(len(data), bool), [0.0] * len(data))
    batch = TeacherBatch(Teacher(TEACHER, 1.0, HeadSettings(7)), table, prompts)
    given = np.full(len(table.advantage), 0.5, np.float32) if weights is None else weights
    term = DivergenceTerm("teacher", kind, batch.head_input, given, batch.observe)
    return update_policy(trainer, table, train_sequences(data), SPEC, plan, terms=[term]), batch


def expected_gradient(prompts: dict[str, np.ndarray] | None, kind: Divergence) -> dict[str, torch.Tensor]:
    """Row by row with full logits: half the divergence, summed over tokens, mean over rows."""
    student = make_model()
    total = torch.zeros(())
    data = rows()

    def logits(model: Any, ids: np.ndarray, sampled: int) -> torch.Tensor:
        from posttrain.model.forward import output_weight, target_hidden, to_device
        from posttrain.model.packing import Block, TrainSequence

        mask = np.arange(len(ids)) >= len(ids) - sampled
        block = Block(ids[: len(ids) - sampled], (TrainSequence(0, ids, mask, len(ids) - sampled, "x"),))
        weight = output_weight(model)
        return target_hidden(model, to_device([block], weight.device)) @ weight.t()

    for row in data:
        sampled = row.num_model_tokens
        prompt = row.token_ids[: row.num_prompt_tokens] if prompts is None else prompts[row.group_id]
        with torch.no_grad():
            theirs = logits(TEACHER, np.concatenate([prompt, row.model_token_ids]), sampled)
        mine = logits(student, row.token_ids, sampled)
        total = total + 0.5 * token_divergence(mine, theirs, kind.beta, kind.top_k, kind.support).sum() / len(data)
    total.backward()
    return {n: p.grad for n, p in student.named_parameters()}


@pytest.mark.parametrize("prompts", [None, OTHER_PROMPTS])
@pytest.mark.parametrize("kind", [REVERSE, Divergence(0.0), Divergence(0.5, 6)])
def test_gradient_is_that_of_full_logits(prompts: dict[str, np.ndarray] | None, kind: Divergence) -> None:
    trainer = Probe.make()
    run(trainer, prompts=prompts, kind=kind)
    assert largest_gap(expected_gradient(prompts, kind), trainer.found) < 2e-5


def test_the_teachers_own_prompt_changes_the_gradient() -> None:
    plain, privileged = Probe.make(), Probe.make()
    run(plain)
    run(privileged, prompts=OTHER_PROMPTS)
    assert largest_gap(plain.found, privileged.found) > 0.01


@pytest.mark.parametrize(
    "plan",
    [UpdatePlan(1, 1, 1, True), UpdatePlan(1, 40, 1600, True, share_prompts=False), UpdatePlan(1, 30, 900, False)],
)
def test_no_cut_and_no_order_changes_gradient_or_statistics(plan: UpdatePlan) -> None:
    base, other = Probe.make(), Probe.make()
    whole, batch = run(base, prompts=OTHER_PROMPTS)
    cut, cut_batch = run(other, plan, OTHER_PROMPTS, order=np.random.default_rng(1).permutation(12))
    assert largest_gap(base.found, other.found) < 2e-5
    assert cut.terms.finalize() == pytest.approx(whole.terms.finalize(), rel=1e-5)
    values, others = batch.signals(), cut_batch.signals()
    assert others == pytest.approx(values, rel=1e-4)
    assert {f"distillation/gap_quarter/{q}" for q in (1, 2, 3, 4)} < values.keys()


def test_only_weighted_trained_tokens_count() -> None:
    trainer, without = Probe.make(), Probe.make()
    lengths = [len(t) for t in rows()]
    weights = np.repeat(np.arange(12) < 4, lengths).astype(np.float32)
    result, _ = run(trainer, weights=weights)
    assert result.terms.tokens["teacher"] == 5 + 9 + 3 + 4
    result, _ = run(without, weights=np.zeros_like(weights))
    assert result.terms.finalize() == {}
    assert all(not g.any() for g in without.found.values())


def test_scores_are_the_teachers_on_the_students_tokens() -> None:
    """The sampled kind and the full kind record the same log-probs, and a teacher equal to the student has no gap."""
    data = rows()
    trainer = make_trainer(make_model())
    sequences = train_sequences(data)
    tables: list[np.ndarray] = []
    for prompts in (None, OTHER_PROMPTS):
        table = RowTable.of(data, np.ones(12, bool), [0.0] * 12)
        batch = TeacherBatch(Teacher(TEACHER, 1.0, HeadSettings(7)), table, prompts)
        batch.score(plan_blocks(trainer, sequences, UpdatePlan(1, 30, 900, True)), trainer.model, 1.0)
        _, full = run(Probe.make(), prompts=prompts)
        np.testing.assert_allclose(table.teacher_logprob, full.table.teacher_logprob, atol=2e-5)
        tables.append(table.teacher_logprob[table.loss_mask])
    assert np.abs(tables[0] - tables[1]).max() > 0.1
    table = RowTable.of(data, np.ones(12, bool), [0.0] * 12)
    trainer.score(plan_blocks(trainer, sequences, WIDE), table)
    itself = replace(table, sampler_logprob=table.trainer_logprob)
    batch = TeacherBatch(Teacher(trainer.model, 1.0, HeadSettings(7)), itself)
    batch.score(plan_blocks(trainer, sequences, WIDE), trainer.model, 1.0)
    values = batch.signals()
    assert values["distillation/gap"] == pytest.approx(0.0, abs=1e-5)
    assert values["distillation/top_token_overlap"] == 1.0
    assert values["distillation/teacher_entropy"] == pytest.approx(float(np.nanmean(table.entropy)), abs=1e-4)

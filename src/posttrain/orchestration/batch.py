"""From graded groups to a training batch: shaping, baselines, advantages, and what they say about the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.environment.grading import GradedTasks
from posttrain.logprobs.comparison import compare
from posttrain.model.packing import TrainSequence
from posttrain.orchestration.critic import CriticBatch, value_batch
from posttrain.orchestration.teacher import teacher_prompts
from posttrain.orchestration.workbench import Workbench
from posttrain.policy.advantages import Advantages, Attempts, sequence_advantages
from posttrain.policy.anchors import reward_penalty, token_penalties
from posttrain.policy.distillation import teacher_advantages
from posttrain.policy.divergence_head import Divergence
from posttrain.policy.filters import is_mixed
from posttrain.policy.group_statistics import GroupStatistics, group_statistics
from posttrain.policy.overlong import overlong_masks, soft_overlong_penalty
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.teacher import TeacherBatch
from posttrain.policy.terms import DivergenceTerm
from posttrain.policy.update import plan_blocks
from posttrain.settings.objective import Anchor, ObjectiveSpec
from posttrain.trajectory import FinishReason, FloatArray, Group, TokenColumns, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one batch: only members with a reward.

    ``rewards`` float64 (S,) as graded; ``anchor_weights`` float64 (S,), wherever the anchor sits. ``teacher`` is there
    where the policy is distilled, ``terms`` where whole distributions are compared, ``critic`` where a critic is the
    baseline; ``unanchored`` float32 (T,) are the advantages without the anchor's part, where that is wanted and other.
    """

    rows: Sequence[Trajectory]
    table: RowTable
    sequences: Sequence[TrainSequence]
    rewards: npt.NDArray[np.float64]
    anchor_weights: npt.NDArray[np.float64]
    advantages: Advantages
    statistics: GroupStatistics
    teacher: TeacherBatch | None = None
    terms: Sequence[DivergenceTerm] = ()
    critic: CriticBatch | None = None
    unanchored: FloatArray | None = None


def why_untrainable(group: Group, spec: ObjectiveSpec, environments: Mapping[str, GradedTasks]) -> str:
    """Reason to discard a group whole, or an empty string."""
    members = group.gradable
    needed = 2 if spec.advantage.compares_attempts and spec.distillation.reward_weight != 0.0 else 1
    if len(members) < needed:
        return f"{len(members)} of {len(group.trajectories)} members could be graded, {needed} are needed"
    if spec.advantage.baseline == "greedy" and (group.baseline is None or not group.baseline.is_gradable):
        return "the greedy attempt could not be graded"
    if spec.group_filter.rule == "mixed_success":
        threshold = environments[group.task.environment].success_threshold
        wins = np.array([t.reward >= threshold for t in members])
        if not is_mixed(wins):
            return "all members succeed" if wins.all() else "no member succeeds"
    return ""


def build_batch(bench: Workbench, groups: Sequence[Group]) -> Batch:
    """Rows, shaped rewards and advantages. Scores the batch first if the anchor sits in the reward."""
    spec, sizes = bench.spec, bench.preparation.resolved.sizes
    rows = [t for group in groups for t in group.gradable]
    finish = [t.finish_reason or FinishReason.FAILED for t in rows]
    in_loss, in_baseline = overlong_masks(finish, spec.overlong)
    weights = anchor_weights(bench, rows)
    in_reward = spec.anchor.place == "reward"
    by_token = not in_reward and spec.anchor.sampled
    table = RowTable.of(rows, in_loss, weights.tolist() if by_token else [0.0] * len(rows))
    sequences = train_sequences(rows)
    rewards = np.array([t.reward for t in rows], np.float64)
    lengths = np.array([t.num_model_tokens for t in rows], np.int64)
    shaped = rewards + soft_overlong_penalty(lengths, sizes.max_new_tokens, spec.overlong)
    penalties = np.zeros(len(table.loss_mask))
    if weights.any() and spec.anchor.sampled:
        assert bench.reference is not None
        plan = plan_blocks(bench.trainer, sequences, bench.plan)
        bench.reference.score(plan, table)
        if in_reward:
            bench.trainer.score(plan, table)
            of_tokens = token_penalties(table.trainer_logprob, table.reference_logprob, table.loss_mask, spec.anchor)
            penalties = weights[table.row_of_token] * of_tokens
    thresholds = np.array([bench.environments[t.task.environment].success_threshold for t in rows])
    valued: CriticBatch | None = None
    unanchored: FloatArray | None = None
    if bench.critic is not None:
        valued = value_batch(bench.critic, bench.trainer, bench.plan, spec, table, sequences, rows, shaped, penalties)
        advantages = valued.of_rows
        table.set_token_advantages(spec.distillation.reward_weight * valued.advantages)
    else:
        penalised = shaped - np.bincount(table.row_of_token, penalties, len(rows))
        attempts = _attempts(bench, groups, rows, table, rewards >= thresholds)
        given = ([t.group_id for t in rows], spec.advantage, in_baseline, attempts)
        advantages = sequence_advantages(penalised, *given)
        if penalties.any() and spec.anchor.gradient_every:
            table.set_advantages(spec.distillation.reward_weight * sequence_advantages(shaped, *given).values)
            unanchored = table.advantage
        table.set_advantages(spec.distillation.reward_weight * advantages.values)
    anchored = table.advantage
    teacher, terms = _distil(bench, table, sequences, rows)
    if not spec.anchor.sampled:
        terms = (*terms, *_whole_anchor(bench, table, weights))
    if unanchored is not None:
        unanchored = (unanchored + (table.advantage - anchored)).astype(np.float32)
    statistics = group_statistics(rewards, rewards >= thresholds, table.trained_tokens, advantages)
    return Batch(rows, table, sequences, rewards, weights, advantages, statistics, teacher, terms, valued, unanchored)


def anchor_weights(bench: Workbench, rows: Sequence[Trajectory]) -> npt.NDArray[np.float64]:
    """Each row's weight of the pull towards the reference, by its environment and the present factor, (S,)."""
    factor = 1.0 if bench.reference is None else bench.reference.state.factor
    return factor * np.array([bench.anchors[t.task.environment] for t in rows], np.float64)


def _whole_anchor(bench: Workbench, table: RowTable, weights: npt.NDArray[np.float64]) -> Sequence[DivergenceTerm]:
    """The anchor as a divergence of whole distributions; nothing if no row has a weight."""
    if bench.reference is None or not weights.any():
        return ()
    of_token = np.where(table.loss_mask, weights[table.row_of_token], 0.0).astype(np.float32)
    return (DivergenceTerm("anchor", Divergence(1.0), bench.reference.head_input, of_token),)


def _attempts(
    bench: Workbench,
    groups: Sequence[Group],
    rows: Sequence[Trajectory],
    table: RowTable,
    successes: npt.NDArray[np.bool_],
) -> Attempts:
    greedy = {g.group_id: np.nan if g.baseline is None else g.baseline.reward for g in groups}
    # Only one environment is allowed where its reward functions are told apart.
    weights = next(iter(bench.environments.values())).part_weights
    parts = [[_part(t, name) for name in weights] for t in rows]
    return Attempts(
        lengths=table.trained_tokens,
        greedy_rewards=np.array([greedy[t.group_id] for t in rows], np.float64),
        successes=successes,
        parts=np.array(parts, np.float64).reshape(len(rows), len(weights)),
        part_weights=np.array(list(weights.values()), np.float64),
    )


def _part(trajectory: Trajectory, name: str) -> float:
    value = None if trajectory.grade is None else trajectory.grade.parts.get(name)
    return np.nan if value is None else value


def _distil(
    bench: Workbench, table: RowTable, sequences: Sequence[TrainSequence], rows: Sequence[Trajectory]
) -> tuple[TeacherBatch | None, Sequence[DivergenceTerm]]:
    """The teacher's part: added to the advantages, or a term of the loss."""
    spec = bench.spec.distillation
    if bench.teacher is None:
        return None, ()
    teacher = TeacherBatch(bench.teacher.model, table, teacher_prompts(bench.teacher, rows))
    if spec.by_distribution:
        weights = np.where(table.loss_mask, spec.weight, 0.0).astype(np.float32)
        kind = Divergence(spec.beta, spec.top_k if spec.kind == "top_k" else 0, spec.support)
        return teacher, (DivergenceTerm("teacher", kind, teacher.head_input, weights, teacher.observe),)
    plan = plan_blocks(bench.trainer, sequences, bench.plan)
    teacher.score(plan, bench.trainer.model, bench.trainer.temperature)
    advantages = teacher_advantages(
        table.sampler_logprob, table.teacher_logprob, table.loss_mask, table.row_of_token, spec.weight, spec.discount
    )
    table.add_advantages(advantages)
    return teacher, ()


def write_columns(batch: Batch) -> None:
    """Put what training computed back into the trajectories, token by token."""
    table = batch.table
    anchored = bool(np.isfinite(table.reference_logprob).any())
    for index, trajectory in enumerate(batch.rows):
        part = table.row(index)
        trajectory.set_columns(
            TokenColumns(
                trainer_logprob=table.trainer_logprob[part],
                reference_logprob=table.reference_logprob[part] if anchored else None,
                advantage=table.advantage[part],
                loss_mask=table.loss_mask[part],
                value=batch.critic.columns.value[part] if batch.critic is not None else None,
                teacher_logprob=table.teacher_logprob[part] if batch.teacher is not None else None,
            )
        )


def mismatch(batch: Batch) -> dict[str, float]:
    """Sampler against trainer, before the first update, over every scored token. By signal name."""
    table = batch.table
    scored = ~np.isnan(table.trainer_logprob)
    return compare(table.sampler_logprob, table.trainer_logprob, scored, table.row_of_token).finalize()


def mean_entropy(batch: Batch) -> float | None:
    """Mean entropy over the trained tokens before the first update, in nats; ``None`` where it was not measured."""
    known = batch.table.entropy[batch.table.loss_mask & np.isfinite(batch.table.entropy)]
    return float(known.mean(dtype=np.float64)) if known.size else None


def anchor_kl(batch: Batch) -> float | None:
    """Mean k3 estimate of KL(policy || reference) over the trained tokens of anchored rows, before the first update.

    In nats per token; ``None`` without such a token. For an anchor in the reward, which the objective does not see.
    """
    table, anchored = batch.table, batch.anchor_weights != 0
    tokens = int(table.trained_tokens[anchored].sum())
    if not tokens:
        return None
    of_rows = reward_penalty(
        table.trainer_logprob,
        table.reference_logprob,
        table.loss_mask & anchored[table.row_of_token],
        table.row_of_token,
        len(table),
        Anchor(estimator="k3"),
    )
    return float(of_rows.sum()) / tokens

"""One batch of rows becomes optimizer steps: plan micro-batches, score what must be scored, accumulate, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.model.packing import Block, TrainSequence, build_blocks, plan_micro_batches
from posttrain.policy.adaptive import adapted_weight
from posttrain.policy.aggregation import step_totals
from posttrain.policy.masters import StepResult
from posttrain.policy.rows import RowTable
from posttrain.policy.statistics import ObjectiveStatistics
from posttrain.policy.step_choices import choose_by_covariance, correction_counts
from posttrain.policy.terms import DivergenceTerm, TermStatistics
from posttrain.policy.trainer import Trainer
from posttrain.policy.value_term import SharedValues
from posttrain.settings.objective import ObjectiveSpec, TrustRegion


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch is cut. ``micro_batch_pairs`` bounds attention pairs as ``micro_batch_tokens`` bounds tokens.

    ``seed`` is that of random choices of tokens.
    """

    updates_per_batch: int
    micro_batch_tokens: int
    micro_batch_pairs: int
    skip_zero_advantage: bool
    share_prompts: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Merged statistics of all updates of the batch; ``steps`` in order; ``packed_tokens`` really computed. ``terms``
    are measured over the first update, when the policy is still the one that the data came from. ``kl_weight`` is the
    trust region's penalty weight after the batch, if it has one. ``frozen``: rows were scored and no step was meant."""

    statistics: ObjectiveStatistics
    steps: tuple[StepResult, ...]
    trained_tokens: int
    packed_tokens: int
    micro_batches: int
    terms: TermStatistics
    kl_weight: float | None = None
    frozen: bool = False


def plan_blocks(trainer: Trainer, sequences: Sequence[TrainSequence], plan: UpdatePlan) -> list[list[Block]]:
    """Micro-batches of sequences; the same sequences in any order give the same plan."""
    blocks = build_blocks(sorted(sequences, key=lambda s: s.index), trainer.cost, plan.share_prompts)
    return plan_micro_batches(blocks, plan.micro_batch_tokens, plan.micro_batch_pairs)


def update_policy(
    trainer: Trainer,
    table: RowTable,
    sequences: Sequence[TrainSequence],
    spec: ObjectiveSpec,
    plan: UpdatePlan,
    between: Callable[[], None] = lambda: None,
    terms: Sequence[DivergenceTerm] = (),
    values: SharedValues | None = None,
    *,
    frozen: bool = False,
) -> UpdateResult:
    """Train on one batch. ``sequences[i].index`` is row i of ``table``; advantages are already in it.

    With several updates every row is scored before the first one, so that all share one proximal policy; with one,
    where the step counts or chooses tokens by their log-probs. Rows whose gradient is exactly zero (no advantage,
    anchor, term, or trust region that speaks without one) get no backward pass, but a forward pass in their update:
    they count in every denominator and in every statistic. ``between`` is called after each micro-batch (progress,
    interruption). ``values`` is the head of a critic on the policy's backbone; with ``frozen`` every row is scored and
    no policy step is taken.
    """
    skips = plan.skip_zero_advantage and not spec.trust_region.speaks_without_advantage
    silent = _silent_rows(table, terms) if skips else np.zeros(len(table), np.bool_)
    if frozen or (values is not None and values.moves_backbone):
        silent[:] = frozen
    scores_first = (
        plan.updates_per_batch > 1 or spec.correction.before_update or spec.trust_region.chooses_by_covariance
    )
    scored = plan_blocks(trainer, sequences, plan) if scores_first else []
    for blocks in scored:
        trainer.score([blocks], table)
        between()
    statistics = ObjectiveStatistics.empty(trainer.device)
    steps: list[StepResult] = []
    measured = TermStatistics.empty()
    packed, count, trained = sum(len(b) for blocks in scored for b in blocks), len(scored), 0
    tokens = table.trained_tokens
    for rows in _split_by_group(table, plan.updates_per_batch):
        chosen = np.zeros(len(table), np.bool_)
        chosen[rows] = True
        counts = correction_counts(table, chosen, spec.correction)
        totals = step_totals(
            torch.from_numpy(counts.tokens), torch.from_numpy(table.group_of_row), counts.mean, trainer.kl_weight
        )
        trained += totals.tokens
        if spec.trust_region.chooses_by_covariance:
            again = plan_blocks(trainer, [s for s in sequences if chosen[s.index]], plan) if steps else []
            logprobs = trainer.logprobs_of(again, table) if steps else table.trainer_logprob
            choose_by_covariance(table, logprobs, chosen, spec, plan.seed + trainer.version)
            packed, count = packed + sum(len(b) for blocks in again for b in blocks), count + len(again)
        of_step = ObjectiveStatistics.empty(trainer.device)
        value_term = values.begin_update(table, int(tokens[chosen].sum())) if values else None
        trainer.begin(totals, spec, terms, value_term)
        # Rows outside the loss have nothing to observe, but want their log-probs, if they have none yet.
        seen = chosen & silent & ((tokens > 0) | (not scored))
        for work, mask in ((trainer.observe, seen), (trainer.accumulate, chosen & ~silent)):
            for blocks in plan_blocks(trainer, [s for s in sequences if mask[s.index]], plan):
                of_step = of_step + work(blocks, table)
                packed, count = packed + sum(len(b) for b in blocks), count + 1
                between()
        statistics = statistics + of_step
        measured = measured if steps else trainer.term_statistics
        if steps:
            _adapt(trainer, of_step, spec.trust_region)
        steps.append(trainer.step())
        if values is not None:
            values.end_update()
    weight = (trainer.kl_weight or spec.trust_region.kl_weight) if spec.trust_region.kind == "kl_penalty" else None
    return UpdateResult(statistics, tuple(steps), trained, packed, count, measured, weight, frozen)


def _adapt(trainer: Trainer, statistics: ObjectiveStatistics, spec: TrustRegion) -> None:
    """Move the penalty's weight by the divergence that the updates before this one caused."""
    divergence = statistics.mean_divergence
    if spec.kind == "kl_penalty" and spec.kl_target is not None and divergence is not None:
        trainer.kl_weight = adapted_weight(trainer.kl_weight or spec.kl_weight, divergence, spec.kl_target)


def _silent_rows(table: RowTable, terms: Sequence[DivergenceTerm]) -> npt.NDArray[np.bool_]:
    loud = (table.advantage != 0) | (table.anchor_weight != 0)
    for term in terms:
        loud |= term.weights != 0
    loud &= table.loss_mask
    return np.bincount(table.row_of_token, loud, len(table)) == 0


def _split_by_group(table: RowTable, parts: int) -> list[npt.NDArray[np.int64]]:
    """Rows of each update: whole groups, split as evenly as their number allows."""
    groups = np.unique(table.group_of_row)
    pieces = np.array_split(groups, min(parts, max(1, len(groups))))
    return [np.flatnonzero(np.isin(table.group_of_row, piece)) for piece in pieces]

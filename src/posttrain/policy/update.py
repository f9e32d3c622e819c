"""One batch of rows becomes optimizer steps: plan micro-batches, score what must be scored, accumulate, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.model.packing import Block, TrainSequence, build_blocks, plan_micro_batches
from posttrain.policy.aggregation import step_totals
from posttrain.policy.masters import StepResult
from posttrain.policy.rows import RowTable
from posttrain.policy.statistics import ObjectiveStatistics
from posttrain.policy.terms import DivergenceTerm, TermStatistics
from posttrain.policy.trainer import Trainer
from posttrain.settings.objective import ObjectiveSpec


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch is cut. ``micro_batch_pairs`` bounds attention pairs as ``micro_batch_tokens`` bounds tokens."""

    updates_per_batch: int
    micro_batch_tokens: int
    micro_batch_pairs: int
    skip_zero_advantage: bool
    share_prompts: bool = True


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Merged statistics of all updates of the batch; ``steps`` in order; ``packed_tokens`` really computed. ``terms``
    are measured over the first update, when the policy is still the one that the data came from."""

    statistics: ObjectiveStatistics
    steps: tuple[StepResult, ...]
    trained_tokens: int
    packed_tokens: int
    micro_batches: int
    terms: TermStatistics


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
) -> UpdateResult:
    """Train on one batch. ``sequences[i].index`` is row i of ``table``; advantages are already in it.

    With several updates every row is scored before the first one, so that all share one proximal policy. Rows whose
    gradient is exactly zero (no advantage, anchor or term) get no backward pass, but a forward pass in their update:
    they count in every denominator and in every statistic. ``between`` is called after each micro-batch (progress,
    interruption).
    """
    silent = _silent_rows(table, terms) if plan.skip_zero_advantage else np.zeros(len(table), np.bool_)
    scored = plan_blocks(trainer, sequences, plan) if plan.updates_per_batch > 1 else []
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
        totals = step_totals(torch.from_numpy(np.where(chosen, tokens, 0)), torch.from_numpy(table.group_of_row))
        trained += totals.tokens
        trainer.begin(totals, spec, terms)
        # Rows outside the loss have nothing to observe, but want their log-probs, if they have none yet.
        seen = chosen & silent & ((tokens > 0) | (not scored))
        for work, mask in ((trainer.observe, seen), (trainer.accumulate, chosen & ~silent)):
            for blocks in plan_blocks(trainer, [s for s in sequences if mask[s.index]], plan):
                statistics = statistics + work(blocks, table)
                packed, count = packed + sum(len(b) for b in blocks), count + 1
                between()
        measured = measured if steps else trainer.term_statistics
        steps.append(trainer.step())
    return UpdateResult(statistics, tuple(steps), trained, packed, count, measured)


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

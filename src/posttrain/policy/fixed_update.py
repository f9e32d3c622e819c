"""One optimizer step on given rows: every row becomes one number, a loss of these numbers is minimised.

A *unit* is what must stay in one micro-batch (both answers of a pair); rows are numbered over the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.logprobs.scoring import score_blocks
from posttrain.model.packing import Block, CostModel, TrainSequence, build_blocks
from posttrain.policy.masters import StepResult
from posttrain.policy.trainer import Trainer

RowLoss = Callable[[npt.NDArray[np.int64], torch.Tensor], torch.Tensor]
"""From row numbers int64 (n,) and their values float64 (n,), with gradient, to this micro-batch's part of the loss."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """``rows`` int64 (n,), ``values`` float64 (n,) with gradient; entropy is a sum in nats over ``tokens`` targets."""

    rows: npt.NDArray[np.int64]
    values: torch.Tensor
    entropy: float
    tokens: int


RowScorer = Callable[[Trainer, list[Block]], RowValues]


@dataclass(frozen=True, slots=True)
class FixedUpdate:
    """``values`` float64 (rows,) as they were before the step; ``loss`` of the whole step."""

    step: StepResult
    loss: float
    values: npt.NDArray[np.float64]
    entropy: float
    trained_tokens: int
    packed_tokens: int
    micro_batches: int


def summed_logprobs(trainer: Trainer, blocks: list[Block]) -> RowValues:
    """Log-prob of each sequence's targets, summed in float64."""
    scores = score_blocks(trainer.model, blocks, trainer.temperature, trainer.head, trainer.with_entropy)
    rows, place = np.unique(scores.batch.packed.target_sequence, return_inverse=True)
    sums = torch.zeros(len(rows), dtype=torch.float64, device=scores.logprobs.device)
    sums = sums.index_add(0, torch.from_numpy(place).to(sums.device), scores.logprobs.double())
    entropy = float(scores.entropy.double().sum()) if trainer.with_entropy else float("nan")
    return RowValues(rows, sums, entropy, len(place))


def plan_units(
    units: Sequence[Sequence[TrainSequence]], cost: CostModel, max_tokens: int, max_pairs: int
) -> list[list[Block]]:
    """Micro-batches of whole units, of at most ``max_tokens`` packed tokens and ``max_pairs`` attention pairs.

    A unit's sequences share their prefix where that is cheaper. Longest first; the same units in any order give the
    same plan. A unit beyond a limit gets a micro-batch of its own.
    """
    blocks = [build_blocks(sorted(unit, key=lambda s: s.index), cost) for unit in units]
    sizes = [(sum(len(b) for b in unit), sum(len(b) ** 2 for b in unit)) for unit in blocks]
    order = sorted(range(len(units)), key=lambda i: (-sizes[i][0], blocks[i][0].sequences[0].index))
    plan: list[list[Block]] = []
    tokens = pairs = 0
    for i in order:
        if not plan or tokens + sizes[i][0] > max_tokens or pairs + sizes[i][1] > max_pairs:
            plan.append([])
            tokens = pairs = 0
        plan[-1] += blocks[i]
        tokens, pairs = tokens + sizes[i][0], pairs + sizes[i][1]
    return plan


@torch.no_grad()
def score_rows(
    trainer: Trainer, plan: Sequence[list[Block]], rows: int, scorer: RowScorer = summed_logprobs
) -> npt.NDArray[np.float64]:
    """Values of all rows under the current weights, float64 (rows,); NaN for a row that is not planned."""
    values = np.full(rows, np.nan)
    for part in _scored(trainer, plan, scorer):
        values[part.rows] = part.values.cpu().numpy()
    return values


def fixed_update(
    trainer: Trainer,
    plan: Sequence[list[Block]],
    rows: int,
    loss: RowLoss,
    scorer: RowScorer = summed_logprobs,
) -> FixedUpdate:
    """Accumulate the loss over the plan and step. Denominators are the loss's own, over the whole step.

    Raises NonFiniteError, and changes no weight, where a log-prob or the gradient is not finite.
    """
    values = np.full(rows, np.nan)
    total = entropy = 0.0
    tokens = 0
    for part in _scored(trainer, plan, scorer):
        value = loss(part.rows, part.values)
        value.backward()
        values[part.rows] = part.values.detach().cpu().numpy()
        total, entropy, tokens = total + float(value.detach()), entropy + part.entropy, tokens + part.tokens
    packed = sum(len(block) for blocks in plan for block in blocks)
    return FixedUpdate(trainer.step(), total, values, entropy / max(tokens, 1), tokens, packed, len(plan))


def _scored(trainer: Trainer, plan: Sequence[list[Block]], scorer: RowScorer) -> Iterator[RowValues]:
    trainer.model.train()
    for blocks in plan:
        yield scorer(trainer, blocks)

"""How hard an anchor pulls against everything else, in the only unit that counts: the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from posttrain.model.packing import Block
from posttrain.policy.aggregation import step_totals
from posttrain.policy.rows import RowTable
from posttrain.policy.terms import DivergenceTerm
from posttrain.policy.trainer import Trainer
from posttrain.settings.objective import ObjectiveSpec
from posttrain.trajectory import FloatArray


@dataclass(frozen=True, slots=True)
class AnchorGradient:
    """``ratio`` is the norm of the anchor's gradient over that of the rest, ``cosine`` of the angle between them."""

    ratio: float
    cosine: float

    def signals(self) -> dict[str, float]:
        """By signal name."""
        return {"policy/anchor_gradient_ratio": self.ratio, "policy/anchor_gradient_cosine": self.cosine}


def anchor_gradient(
    trainer: Trainer,
    blocks: list[Block],
    table: RowTable,
    unanchored: FloatArray,
    spec: ObjectiveSpec,
    terms: Sequence[DivergenceTerm] = (),
) -> AnchorGradient | None:
    """Compare the two on one micro-batch, at the present weights; no weight and no summed gradient changes.

    ``unanchored`` float32 (T,) are the advantages without an anchor's penalty in the reward. The anchor's gradient is
    the whole one minus the rest's, wherever the anchor sits. ``None`` where either is exactly 0: an angle with nothing
    does not exist. To be called before the step's ``begin``.
    """
    rest = replace(table, anchor_weight=np.zeros_like(table.anchor_weight), advantage=unanchored)
    whole = _gradient(trainer, blocks, table, spec, terms)
    others = _gradient(trainer, blocks, rest, spec, [t for t in terms if t.name != "anchor"])
    dot = anchor_square = rest_square = 0.0
    for mine, theirs in zip(whole, others, strict=True):
        pull = mine.double() - theirs.double()
        dot += float((pull * theirs).sum())
        anchor_square += float((pull * pull).sum())
        rest_square += float(theirs.double().square().sum())
    if not anchor_square or not rest_square:
        return None
    ratio = (anchor_square / rest_square) ** 0.5
    return AnchorGradient(ratio, dot / (anchor_square * rest_square) ** 0.5)


def _gradient(
    trainer: Trainer, blocks: list[Block], table: RowTable, spec: ObjectiveSpec, terms: Sequence[DivergenceTerm]
) -> list[torch.Tensor]:
    tokens, groups = torch.from_numpy(table.trained_tokens), torch.from_numpy(table.group_of_row)
    trainer.begin(step_totals(tokens, groups), spec, terms)
    loss = trainer.loss(blocks, table)
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]
    found: Any = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]

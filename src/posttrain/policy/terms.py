"""Terms of the loss that compare whole next-token distributions with those of another model.

Legend: ``M`` targets of one micro-batch, ``T`` tokens of all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from posttrain.model.packing import Block
from posttrain.policy.divergence_head import Divergence, HeadInput, token_divergences

TermName = Literal["anchor", "teacher"]


@dataclass(frozen=True, slots=True)
class DivergenceTerm:
    """``weight x divergence(policy, other)`` of each trained token.

    ``other`` gives the other model's hidden states (M, h) and head for the targets of a micro-batch, in their order;
    ``weights`` float32 (T,) is each token's weight by its place in the batch's table, 0 where there is no term.
    ``observe(where, policy, other, target_ids)`` is called without gradient for the tokens of each micro-batch.
    """

    name: TermName
    kind: Divergence
    other: Callable[[list[Block]], HeadInput]
    weights: npt.NDArray[np.float32]
    observe: Callable[[npt.NDArray[np.int64], HeadInput, HeadInput, torch.Tensor], None] | None = None


@dataclass(frozen=True, slots=True)
class TermStatistics:
    """Partial sums by term over trained tokens of weight above 0: ``values`` float64 sums of divergence in nats,
    ``tokens`` counts. ``+`` merges."""

    values: dict[TermName, torch.Tensor]
    tokens: dict[TermName, int]

    @classmethod
    def empty(cls) -> TermStatistics:
        """The neutral element of ``+``."""
        return cls({}, {})

    def __add__(self, other: TermStatistics) -> TermStatistics:
        values, tokens = dict(self.values), dict(self.tokens)
        for name, value in other.values.items():
            values[name] = values[name] + value if name in values else value
            tokens[name] = tokens.get(name, 0) + other.tokens[name]
        return TermStatistics(values, tokens)

    def finalize(self) -> dict[str, float]:
        """Mean divergence by signal name; absent where no token has the term."""
        names = {"anchor": "policy/anchor_kl", "teacher": "distillation/divergence"}
        return {names[n]: float(v) / self.tokens[n] for n, v in self.values.items() if self.tokens[n]}


def term_losses(
    terms: Sequence[DivergenceTerm],
    blocks: list[Block],
    policy: HeadInput,
    target_ids: torch.Tensor,
    where: npt.NDArray[np.int64],
    loss_mask: npt.NDArray[np.bool_],
    chunk_tokens: int,
) -> tuple[torch.Tensor | None, TermStatistics]:
    """Weighted divergences of one micro-batch's targets, summed over the terms: (M,) with gradient through ``policy``.

    ``target_ids`` int64 (M,) are the sampled tokens, ``where`` (M,) each target's place in the table, ``loss_mask``
    (T,) what is trained. Only tokens with a weight are computed; a micro-batch without any calls no other model and
    gives ``None``.
    """
    total: torch.Tensor | None = None
    statistics = TermStatistics.empty()
    for term in terms:
        chosen = np.flatnonzero(loss_mask[where] & (term.weights[where] != 0))
        if not chosen.size:
            continue
        with torch.no_grad():
            other = term.other(blocks)
        at = torch.from_numpy(chosen).to(policy.hidden.device)
        mine, theirs = _rows(policy, at), _rows(other, at)
        if term.observe is not None:
            with torch.no_grad():
                term.observe(where[chosen], mine, theirs, target_ids.index_select(0, at))
        values = token_divergences(mine, theirs, term.kind, chunk_tokens)
        weights: Any = torch.from_numpy(term.weights[where[chosen]])
        zeros = values.new_zeros(len(where))
        added = zeros.index_put((at,), values * weights.to(values))
        total = added if total is None else total + added
        statistics = statistics + TermStatistics({term.name: values.detach().double().sum()}, {term.name: chosen.size})
    return total, statistics


def _rows(side: HeadInput, at: torch.Tensor) -> HeadInput:
    return HeadInput(side.hidden.index_select(0, at), side.weight, side.temperature)

"""The critic: predicts the return at every sampled token, and learns from the returns that came.

``score`` before the batch's updates, then either ``train`` (a backbone of its own) or ``value_term`` inside the
policy's passes and ``step`` after each of its updates (a shared backbone).

Legend: ``S`` rows, ``T`` tokens of all rows together, ``M`` targets of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from posttrain.errors import NonFiniteError
from posttrain.logprobs.scoring import Scores
from posttrain.model.forward import DeviceBatch, base_model, forward_hidden, output_weight, to_device
from posttrain.model.packing import Block, last_tokens
from posttrain.model.value_head import ValueHead, copy_backbone
from posttrain.policy.masters import Masters, OptimizerSettings, StepResult
from posttrain.policy.rows import RowTable
from posttrain.policy.value_loss import ValueLossResult, ValueStatistics, value_loss
from posttrain.policy.value_term import ValueTerm
from posttrain.settings.objective import Critic as CriticSpec

CRITIC_FOLDER = "critic"
"""Where a checkpoint keeps it."""


@dataclass(slots=True)
class ValueColumns:
    """What the critic says about a batch: ``value`` float32 (T,), before the batch's updates, NaN where no token was
    sampled; ``next_value`` float64 (S,) after each row's last token; ``returns`` float32 (T,), 0 until known."""

    value: npt.NDArray[np.float32]
    next_value: npt.NDArray[np.float64]
    returns: npt.NDArray[np.float32]

    @classmethod
    def empty(cls, table: RowTable) -> ValueColumns:
        """Nothing scored yet."""
        tokens = len(table.loss_mask)
        return cls(np.full(tokens, np.nan, np.float32), np.full(len(table), np.nan), np.zeros(tokens, np.float32))


@dataclass(frozen=True, slots=True)
class CriticUpdate:
    """``statistics`` of all passes, ``steps`` in order, ``packed_tokens`` really computed beside the policy's."""

    statistics: ValueStatistics
    steps: tuple[StepResult, ...]
    packed_tokens: int


class Critic:
    """A value head, the backbone under it, and the optimizer of what of the two is the critic's own."""

    def __init__(
        self, policy: nn.Module, spec: CriticSpec, optimizer: OptimizerSettings, *, checkpointing: bool = False
    ) -> None:
        """``policy`` is the prepared model: copied as it is now, or shared. Masters are float32."""
        self.spec = spec
        weight = output_weight(policy)
        self.device = weight.device
        self.shared = spec.backbone == "shared"
        self.backbone = policy if self.shared else copy_backbone(policy)
        self.head = ValueHead(weight.shape[1], self.device)
        if checkpointing and not self.shared:
            base_model(self.backbone).gradient_checkpointing_enable({"use_reentrant": False})
        trained = {f"head.{name}": p for name, p in self.head.named_parameters()}
        if not self.shared:
            trained |= {f"backbone.{name}": p for name, p in self.backbone.named_parameters() if p.requires_grad}
        self.masters = Masters(trained, optimizer)
        self._statistics, self._steps, self._packed = ValueStatistics.empty(self.device), list[StepResult](), 0

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], table: RowTable) -> ValueColumns:
        """Values of every target of the planned micro-batches, and after each row's last token.

        Raises NonFiniteError naming the first bad one.
        """
        columns = ValueColumns.empty(table)
        for blocks in plan:
            batch = to_device(blocks, self.device)
            hidden = forward_hidden(self.backbone, batch.token_ids, batch.position_ids, batch.layout)
            values = self._values(hidden.index_select(0, batch.predictor), batch)
            columns.value[table.at(batch.packed)] = values.cpu().numpy()
            index, last = last_tokens(batch.packed)
            after = self.head(hidden.index_select(0, torch.from_numpy(last).to(self.device)))
            columns.next_value[index] = after.double().cpu().numpy()
        return columns

    def train(
        self,
        plan: Sequence[list[Block]],
        table: RowTable,
        columns: ValueColumns,
        between: Callable[[], None] = lambda: None,
    ) -> CriticUpdate:
        """All passes of a separate critic over one batch; ``between`` is called after each micro-batch."""
        assert not self.shared, "a shared head trains in the policy's passes"
        self.begin()
        tokens = int(table.loss_mask.sum())
        for _ in range(self.spec.epochs):
            for blocks in plan:
                self.accumulate(blocks, table, columns, tokens)
                between()
            self.step()
        return self.result()

    def begin(self) -> None:
        """Start on a batch: no gradient, no statistics."""
        self.masters.zero_grad()
        self._statistics, self._steps, self._packed = ValueStatistics.empty(self.device), [], 0

    def result(self) -> CriticUpdate:
        """What happened since ``begin``."""
        return CriticUpdate(self._statistics, tuple(self._steps), self._packed)

    def accumulate(self, blocks: list[Block], table: RowTable, columns: ValueColumns, tokens: int) -> None:
        """Forward and backward of one micro-batch of a separate critic; ``tokens`` trained in the whole step."""
        self.backbone.train()
        batch = to_device(blocks, self.device)
        hidden = forward_hidden(self.backbone, batch.token_ids, batch.position_ids, batch.layout)
        values = self._values(hidden.index_select(0, batch.predictor), batch)
        result = self._loss(values, table, columns, table.at(batch.packed), tokens)
        result.loss.backward()
        self._statistics = self._statistics + result.statistics
        self._packed += batch.packed.num_tokens

    def value_term(self, table: RowTable, columns: ValueColumns, tokens: int, *, head_only: bool) -> ValueTerm:
        """What a shared head does in each of the policy's passes of one update of ``tokens`` trained tokens.

        The head's own gradient is summed at once, with weight 1. What is returned, unless ``head_only`` or without a
        coefficient, is ``coefficient x value loss`` with gradient through the hidden states alone.
        """
        assert self.shared

        def term(scores: Scores, where: npt.NDArray[np.int64]) -> torch.Tensor | None:
            with torch.enable_grad():
                values = self._values(scores.hidden.detach(), scores.batch)
                result = self._loss(values, table, columns, where, tokens)
                result.loss.backward()
            self._statistics = self._statistics + result.statistics
            if head_only or self.spec.coefficient == 0.0:
                return None
            through = self.head.frozen(scores.hidden)
            return self.spec.coefficient * self._loss(through, table, columns, where, tokens).loss

        return term

    def step(self) -> None:
        """One optimizer step on what was accumulated. Raises NonFiniteError as the policy's does."""
        self._steps.append(self.masters.step("critic"))

    def _values(self, hidden: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        values = self.head(hidden)
        finite = torch.isfinite(values.detach())
        if not bool(finite.all()):
            bad, packed = int(torch.nonzero(~finite)[0]), batch.packed
            raise NonFiniteError(
                f"the critic's value at position {packed.target_offset[bad]} of row {packed.target_sequence[bad]} "
                f"is {float(values[bad])}"
            )
        return values

    def _loss(
        self,
        values: torch.Tensor,
        table: RowTable,
        columns: ValueColumns,
        where: npt.NDArray[np.int64],
        tokens: int,
    ) -> ValueLossResult:
        def column(source: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(source[where]).to(self.device)

        mask, old, returns = column(table.loss_mask), column(columns.value), column(columns.returns)
        return value_loss(values, old, returns, mask, tokens, self.spec.value_clip)

    def save(self, directory: Path) -> None:
        """Write what the critic trains, and its optimizer, into an existing folder."""
        self.masters.save(directory)

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote. Raises InputError if it belongs to another critic."""
        self.masters.load(directory)


@dataclass(frozen=True, slots=True)
class SharedHead:
    """A critic on the policy's backbone, bound to a batch (see ``value_term.SharedValues``). ``head_only``: the
    backbone stays as it is."""

    critic: Critic
    columns: ValueColumns
    head_only: bool

    @property
    def moves_backbone(self) -> bool:
        """True if values pull on the policy's weights."""
        return self.critic.spec.coefficient > 0.0 and not self.head_only

    def begin_update(self, table: RowTable, tokens: int) -> ValueTerm:
        """The term of one policy update of ``tokens`` trained tokens."""
        return self.critic.value_term(table, self.columns, tokens, head_only=self.head_only)

    def end_update(self) -> None:
        """One step of the head."""
        self.critic.step()

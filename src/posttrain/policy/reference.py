"""The reference policy an anchor pulls towards: the initial weights, frozen."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from posttrain.logprobs.scoring import score_blocks
from posttrain.model.head import HeadSettings
from posttrain.model.lora import LoraPolicy
from posttrain.model.packing import Block
from posttrain.policy.rows import RowTable


class Reference:
    """Scores rows under the initial weights. Under LoRA it is the base model with adapters off, without a copy."""

    def __init__(self, model: nn.Module, lora: LoraPolicy | None, temperature: float, head: HeadSettings) -> None:
        self._lora, self._temperature, self._head = lora, temperature, head
        self._model = model if lora else copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], table: RowTable) -> None:
        """Fill ``reference_logprob`` of the planned micro-batches."""
        if self._lora is None:
            self._score(plan, table)
        else:
            with self._lora.peft.disable_adapter():
                self._score(plan, table)

    def _score(self, plan: Sequence[list[Block]], table: RowTable) -> None:
        for blocks in plan:
            scores = score_blocks(self._model, blocks, self._temperature, self._head, with_entropy=False)
            table.reference_logprob[table.at(scores.batch.packed)] = scores.logprobs.cpu().numpy()

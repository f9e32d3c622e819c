"""The teacher of on-policy distillation: a model that scores the student's own tokens.

The student's tokens are put behind the teacher's prompt, which may be another than the student's (a privileged
prompt): tokens keep their order, so the targets of both correspond one by one.

Legend: ``M`` targets of one micro-batch, ``T`` tokens of all rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from posttrain.model.forward import output_weight, target_hidden, to_device
from posttrain.model.head import HeadSettings, token_logprobs
from posttrain.model.packing import Block, pack
from posttrain.policy.distillation import teacher_gap
from posttrain.policy.divergence_head import HeadInput
from posttrain.policy.rows import RowTable
from posttrain.trajectory import IntArray

UNLIKELY = 1e-4
"""A student's token to which the teacher gives less than this lies where the teacher would not have gone."""

OVERLAP_TOKENS = 16
"""Likeliest tokens of each side that are compared."""

OVERLAP_ROWS = 512
"""Positions of a batch at which they are compared: each costs a product with both heads."""


def with_prompts(blocks: Sequence[Block], prompts: Mapping[str, IntArray]) -> list[Block]:
    """The same sequences behind other prompts, in the same order. ``prompts`` by ``prefix_key``, int32 (P,)."""
    return [_with_prompt(block, prompts[block.sequences[0].prefix_key]) for block in blocks]


def _with_prompt(block: Block, prompt: IntArray) -> Block:
    sequences = tuple(
        replace(
            s,
            token_ids=np.concatenate([prompt, s.token_ids[s.prefix_length :]]),
            target_mask=np.concatenate([np.zeros(len(prompt), np.bool_), s.target_mask[s.prefix_length :]]),
            prefix_length=len(prompt),
        )
        for s in block.sequences
    )
    return Block(prompt, sequences)


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model in evaluation; for self-distillation it is the very model that is trained."""

    model: nn.Module
    temperature: float
    head: HeadSettings

    @torch.no_grad()
    def head_input(self, blocks: Sequence[Block]) -> HeadInput:
        """What it says about the targets of blocks that hold its own prompts."""
        weight = output_weight(self.model)
        hidden = target_hidden(self.model, to_device(list(blocks), weight.device))
        return HeadInput(hidden, weight.detach(), self.temperature)


class TeacherBatch:
    """The teacher and one batch: fills ``teacher_logprob`` of its table and keeps what is measured beside."""

    def __init__(self, teacher: Teacher, table: RowTable, prompts: Mapping[str, IntArray] | None = None) -> None:
        """``prompts`` are the teacher's by ``prefix_key``; absent: the student's own."""
        self.teacher, self.table, self.prompts = teacher, table, prompts
        self._entropy = 0.0
        self._entropy_tokens = self._overlap_tokens = 0
        self._overlap = 0.0

    def head_input(self, blocks: Sequence[Block]) -> HeadInput:
        """The teacher's hidden states and head for the targets of the student's blocks, in their order."""
        return self.teacher.head_input(blocks if self.prompts is None else with_prompts(blocks, self.prompts))

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], student: nn.Module, student_temperature: float) -> None:
        """Fill the table for the planned micro-batches of the student's blocks. The first blocks are also run through
        the student, to compare the likeliest tokens."""
        weight = output_weight(student)
        for number, blocks in enumerate(plan):
            packed = pack(blocks)
            theirs = self.head_input(blocks)
            mine = None
            if number == 0:
                few = to_device(_first(blocks, OVERLAP_ROWS), weight.device)
                mine = HeadInput(target_hidden(student, few), weight, student_temperature)
            self.observe(self.table.at(packed), mine, theirs, torch.from_numpy(packed.target_ids).to(weight.device))

    @torch.no_grad()
    def observe(
        self, where: npt.NDArray[np.int64], student: HeadInput | None, teacher: HeadInput, target_ids: torch.Tensor
    ) -> None:
        """Record the teacher's log-probs of ``target_ids`` (M,) at ``where`` (M,), and its entropy. What was recorded
        before stays: it is the teacher at the batch's first update. ``student`` may be of the first targets alone."""
        new = np.flatnonzero(np.isnan(self.table.teacher_logprob[where]))
        if not new.size:
            return
        at = torch.from_numpy(new).to(target_ids.device)
        hidden = teacher.hidden.index_select(0, at)
        logprobs, entropy = token_logprobs(
            hidden, teacher.weight, target_ids.index_select(0, at), teacher.temperature, self.teacher.head
        )
        self.table.teacher_logprob[where[new]] = logprobs.cpu().numpy()
        self._entropy += float(entropy.double().sum())
        self._entropy_tokens += int(new.size)
        if student is not None and self._overlap_tokens < OVERLAP_ROWS:
            self._compare(student, teacher, min(len(student.hidden), OVERLAP_ROWS - self._overlap_tokens))

    def _compare(self, student: HeadInput, teacher: HeadInput, count: int) -> None:
        """Share of the student's likeliest tokens that are among the teacher's, over the first ``count`` positions."""
        k = min(OVERLAP_TOKENS, student.weight.shape[0], teacher.weight.shape[0])
        size = self.teacher.head.chunk_tokens
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            mine, theirs = (side.logits(part).topk(k, dim=-1).indices for side in (student, teacher))
            shared = (mine[:, :, None] == theirs[:, None, :]).any(-1).float().mean(-1)
            self._overlap += float(shared.double().sum())
        self._overlap_tokens += count

    def signals(self) -> dict[str, float]:
        """How far student and teacher are apart on the trained tokens that were scored, by signal name."""
        table = self.table
        mask = table.loss_mask & ~np.isnan(table.teacher_logprob)
        if not mask.any():
            return {}
        gap = teacher_gap(table.sampler_logprob, table.teacher_logprob, mask)
        values = {
            "distillation/gap": float(gap[mask].mean()),
            "distillation/unlikely_share": float((table.teacher_logprob[mask] < math.log(UNLIKELY)).mean()),
        }
        quarters = _quarters(mask, table)
        for quarter in range(4):
            there = mask & (quarters == quarter)
            if there.any():
                values[f"distillation/gap_quarter/{quarter + 1}"] = float(gap[there].mean())
        if self._entropy_tokens:
            values["distillation/teacher_entropy"] = self._entropy / self._entropy_tokens
        if self._overlap_tokens:
            values["distillation/top_token_overlap"] = self._overlap / self._overlap_tokens
        return values


def _first(blocks: Sequence[Block], targets: int) -> list[Block]:
    """The first blocks that hold at least ``targets`` targets, or all."""
    found = 0
    for number, block in enumerate(blocks):
        if found >= targets:
            return list(blocks[:number])
        found += sum(int(s.target_mask.sum()) for s in block.sequences)
    return list(blocks)


def _quarters(mask: npt.NDArray[np.bool_], table: RowTable) -> npt.NDArray[np.int64]:
    """Quarter (0 to 3) of its own row's tokens in ``mask`` in which each token lies, int64 (T,)."""
    quarters = np.zeros(len(mask), np.int64)
    for row in range(len(table)):
        places = np.flatnonzero(mask[table.row(row)]) + int(table.start[row])
        quarters[places] = 4 * np.arange(len(places)) // max(len(places), 1)
    return quarters

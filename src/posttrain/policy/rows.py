"""The rows of one training batch, token by token: what the objective needs of each trajectory.

Legend: ``S`` rows, ``T`` tokens of all rows together (prompts included), ``M`` targets of one micro-batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.model.packing import Packed, TrainSequence
from posttrain.trajectory import BoolArray, FloatArray, RecordError, Trajectory


@dataclass(slots=True)
class RowTable:
    """Token columns of all rows, flat (T,); ``start`` int64 (S + 1,) says where each row begins.

    Log-probs and entropy are NaN until scored. ``group_of_row`` int64 (S,) numbers the groups; ``advantage``
    and ``anchor_weight`` are 0 and ``loss_mask`` false where nothing is trained. ``key_of_token`` uint64 (T,) names a
    token whatever the order of rows; ``covariance_chosen`` bool (T,) marks those picked for the present update.
    """

    start: npt.NDArray[np.int64]
    group_of_row: npt.NDArray[np.int64]
    sampler_logprob: FloatArray
    trainer_logprob: FloatArray
    reference_logprob: FloatArray
    teacher_logprob: FloatArray
    entropy: FloatArray
    advantage: FloatArray
    anchor_weight: FloatArray
    loss_mask: BoolArray
    key_of_token: npt.NDArray[np.uint64]
    covariance_chosen: BoolArray

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], in_loss: BoolArray, anchor_weights: Sequence[float]) -> RowTable:
        """Columns of ``trajectories``; ``in_loss`` bool (S,) and ``anchor_weights`` (S,) are per row.

        Raises RecordError for a trajectory without sampled tokens.
        """
        lengths = np.array([len(t) for t in trajectories], np.int64)
        start = np.concatenate([[0], np.cumsum(lengths)])
        masks = [t.model_mask for t in trajectories]
        for trajectory, mask in zip(trajectories, masks, strict=True):
            if not mask.any():
                raise RecordError(f"{trajectory.trajectory_id} has no sampled token to train on")
        names = {group: number for number, group in enumerate(dict.fromkeys(t.group_id for t in trajectories))}
        total = int(start[-1])
        sampled = [t.sampler_logprobs for t in trajectories]
        return cls(
            start=start,
            group_of_row=np.array([names[t.group_id] for t in trajectories], np.int64),
            sampler_logprob=np.concatenate(sampled) if sampled else np.empty(0, np.float32),
            trainer_logprob=np.full(total, np.nan, np.float32),
            reference_logprob=np.full(total, np.nan, np.float32),
            teacher_logprob=np.full(total, np.nan, np.float32),
            entropy=np.full(total, np.nan, np.float32),
            advantage=np.zeros(total, np.float32),
            anchor_weight=np.repeat(np.array(anchor_weights, np.float32), lengths),
            loss_mask=np.concatenate([m & keep for m, keep in zip(masks, in_loss, strict=True)])
            if masks
            else np.empty(0, np.bool_),
            key_of_token=_keys(trajectories, lengths),
            covariance_chosen=np.zeros(total, np.bool_),
        )

    def __len__(self) -> int:
        return len(self.start) - 1

    def row(self, index: int) -> slice:
        """Where a row's tokens are."""
        return slice(int(self.start[index]), int(self.start[index + 1]))

    @property
    def row_of_token(self) -> npt.NDArray[np.int64]:
        """Row of each token, int64 (T,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @property
    def trained_tokens(self) -> npt.NDArray[np.int64]:
        """Tokens of each row that enter the loss, int64 (S,)."""
        return np.bincount(self.row_of_token, self.loss_mask, len(self)).astype(np.int64)

    def set_advantages(self, values: npt.NDArray[np.float64]) -> None:
        """Give every sampled token of a row the row's advantage. ``values`` float64 (S,)."""
        self.advantage = np.where(self.loss_mask, np.repeat(values, np.diff(self.start)), 0.0).astype(np.float32)

    def set_token_advantages(self, values: npt.NDArray[np.float64]) -> None:
        """Give every trained token its own advantage. ``values`` float64 (T,)."""
        self.advantage = np.where(self.loss_mask, values, 0.0).astype(np.float32)

    def add_advantages(self, values: npt.NDArray[np.float64]) -> None:
        """Add to the advantage of every trained token. ``values`` float64 (T,)."""
        self.advantage = np.where(self.loss_mask, self.advantage + values, 0.0).astype(np.float32)

    def at(self, packed: Packed) -> npt.NDArray[np.int64]:
        """Flat index of each target of a micro-batch, int64 (M,)."""
        return self.start[packed.target_sequence] + packed.target_offset

    def record(self, where: npt.NDArray[np.int64], logprobs: FloatArray, entropy: FloatArray) -> None:
        """Keep trainer log-probs and entropies (M,) of tokens not scored before: the policy before the first update."""
        new = np.isnan(self.trainer_logprob[where])
        self.trainer_logprob[where[new]] = logprobs[new]
        self.entropy[where[new]] = entropy[new]


def _keys(trajectories: Sequence[Trajectory], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    digests = [hashlib.blake2b(t.trajectory_id.encode(), digest_size=8).digest() for t in trajectories]
    of_rows = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
    offsets = (
        np.concatenate([np.arange(n, dtype=np.uint64) for n in lengths]) if len(lengths) else np.empty(0, np.uint64)
    )
    # Sums wrap around; an odd factor spreads neighbours over all 64 bits.
    return np.repeat(of_rows, lengths) + offsets * np.uint64(0x9E3779B97F4A7C15)


def train_sequences(trajectories: Sequence[Trajectory]) -> list[TrainSequence]:
    """Sequences to pack: every sampled token is a target; the prompt is shared within a group."""
    sequences: list[TrainSequence] = []
    for index, trajectory in enumerate(trajectories):
        mask = trajectory.model_mask
        prompt = trajectory.num_prompt_tokens
        sequences.append(TrainSequence(index, trajectory.token_ids, mask, prompt, trajectory.group_id))
    return sequences

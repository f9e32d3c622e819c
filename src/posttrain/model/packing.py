"""Packing sequences of any length into one flat stack of tokens, shared prompts once.

A *block* is a prefix and its branches: the prompt of a group computed once, and each member's
continuation attending to the prompt and to itself. A single sequence is a block with one branch.

Legend: ``N`` packed tokens, ``M`` scored tokens (targets), ``n`` tokens of one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.trajectory import BoolArray, IntArray

LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One trajectory to be scored or trained.

    ``token_ids`` int32 (T,); ``target_mask`` bool (T,), true where the token's log-prob is wanted (never
    at position 0); the first ``prefix_length`` tokens may be shared with other sequences of equal
    ``prefix_key``. ``prefix_length`` < T, and no target lies inside the prefix.
    """

    index: int
    token_ids: IntArray
    target_mask: BoolArray
    prefix_length: int
    prefix_key: str

    def __post_init__(self) -> None:
        if self.target_mask.shape != self.token_ids.shape:
            raise ValueError(f"target mask {self.target_mask.shape} does not match token ids {self.token_ids.shape}")
        if not 0 < self.prefix_length <= len(self.token_ids):
            raise ValueError(f"prefix of {self.prefix_length} tokens in a sequence of {len(self.token_ids)}")
        if self.target_mask[: self.prefix_length].any():
            raise ValueError("a target inside the shared prefix")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Block:
    """A shared prefix and the sequences that continue it."""

    prefix: IntArray
    sequences: tuple[TrainSequence, ...]

    @property
    def branch_lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence after the prefix."""
        return tuple(len(s) - len(self.prefix) for s in self.sequences)

    def __len__(self) -> int:
        return len(self.prefix) + sum(self.branch_lengths)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Arithmetic cost of a packed token (linear layers) and of a query-key pair (attention), any common unit."""

    per_token: float
    per_pair: float


@dataclass(frozen=True, slots=True)
class Packed:
    """Flat arrays of one micro-batch.

    ``token_ids``, ``position_ids`` int64 (N,). Targets: ``predictor`` int64 (M,) packed index of the position
    whose hidden state predicts the target; ``target_ids`` int64 (M,); ``target_sequence`` int64 (M,) the
    sequence's ``index``; ``target_offset`` int64 (M,) the token's position in its own sequence.
    """

    blocks: tuple[Block, ...]
    token_ids: LongArray
    position_ids: LongArray
    predictor: LongArray
    target_ids: LongArray
    target_sequence: LongArray
    target_offset: LongArray

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.token_ids)


def build_blocks(sequences: Sequence[TrainSequence], cost: CostModel, share_prefixes: bool = True) -> list[Block]:
    """Group sequences by prefix into blocks, sharing each prefix where that costs less than recomputing it.

    A block's attention covers all pairs of its tokens, so one block of many long branches can cost more than
    the prompt it saves; each group is cut into the number of equal parts that is cheapest.
    """
    by_prefix: dict[str, list[TrainSequence]] = {}
    for sequence in sequences:
        by_prefix.setdefault(sequence.prefix_key, []).append(sequence)
    blocks: list[Block] = []
    for members in by_prefix.values():
        prefix_length = min(s.prefix_length for s in members)
        prefix = members[0].token_ids[:prefix_length]
        for member in members:
            if not np.array_equal(member.token_ids[:prefix_length], prefix):
                raise ValueError(f"sequences of prefix {member.prefix_key!r} do not begin with the same tokens")
        ordered = sorted(members, key=len)
        parts = _cheapest_cut(prefix_length, [len(s) for s in ordered], cost) if share_prefixes else len(ordered)
        size = -(-len(ordered) // parts)
        blocks += [Block(prefix, tuple(ordered[start : start + size])) for start in range(0, len(ordered), size)]
    return blocks


def _cheapest_cut(prefix: int, lengths: Sequence[int], cost: CostModel) -> int:
    best, best_cost, parts = len(lengths), float("inf"), 1
    while parts <= len(lengths):
        size = -(-len(lengths) // parts)
        total = 0.0
        for start in range(0, len(lengths), size):
            tokens = prefix + sum(length - prefix for length in lengths[start : start + size])
            total += cost.per_token * tokens + cost.per_pair * tokens * tokens
        if total < best_cost:
            best, best_cost = parts, total
        parts = parts + 1 if parts == len(lengths) else min(parts * 2, len(lengths))
    return best


def plan_micro_batches(blocks: Sequence[Block], max_tokens: int, max_pairs: int) -> list[list[Block]]:
    """Cut blocks into micro-batches of at most ``max_tokens`` packed tokens and ``max_pairs`` attention pairs.

    Blocks are taken longest first, so that the blocks of one micro-batch have similar length; the same blocks
    in any order give the same plan. A block larger than a limit gets a micro-batch of its own.
    """
    ordered = sorted(blocks, key=lambda b: (-len(b), b.sequences[0].index))
    plan: list[list[Block]] = []
    tokens = pairs = 0
    for block in ordered:
        block_pairs = len(block) ** 2
        if not plan or tokens + len(block) > max_tokens or pairs + block_pairs > max_pairs:
            plan.append([])
            tokens = pairs = 0
        plan[-1].append(block)
        tokens += len(block)
        pairs += block_pairs
    return plan


def pack(blocks: Sequence[Block]) -> Packed:
    """Lay blocks out in one flat stack: prefix, then each branch; positions continue from the prefix."""
    token_ids: list[npt.NDArray[np.int32]] = []
    positions: list[LongArray] = []
    predictor: list[LongArray] = []
    target_ids: list[npt.NDArray[np.int32]] = []
    target_sequence: list[LongArray] = []
    target_offset: list[LongArray] = []
    base = 0
    for block in blocks:
        prefix_length = len(block.prefix)
        token_ids.append(block.prefix)
        positions.append(np.arange(prefix_length))
        start = base + prefix_length
        for sequence in block.sequences:
            branch = sequence.token_ids[prefix_length:]
            token_ids.append(branch)
            positions.append(np.arange(prefix_length, len(sequence)))
            offsets = np.flatnonzero(sequence.target_mask)
            before = offsets - 1
            predictor.append(np.where(before < prefix_length, base + before, start + before - prefix_length))
            target_ids.append(sequence.token_ids[offsets])
            target_sequence.append(np.full(len(offsets), sequence.index, np.int64))
            target_offset.append(offsets)
            start += len(branch)
        base += len(block)
    return Packed(
        tuple(blocks),
        *(_long(part) for part in (token_ids, positions, predictor, target_ids, target_sequence, target_offset)),
    )


def last_tokens(packed: Packed) -> tuple[LongArray, LongArray]:
    """Where each sequence ends: its ``index`` and the packed index of its last token, both int64 (B,)."""
    index: list[int] = []
    where: list[int] = []
    base = 0
    for block in packed.blocks:
        prefix = base + len(block.prefix)
        start = prefix
        for sequence, length in zip(block.sequences, block.branch_lengths, strict=True):
            start += length
            index.append(sequence.index)
            where.append((start if length else prefix) - 1)
        base += len(block)
    return np.array(index, np.int64), np.array(where, np.int64)


def _long(parts: Sequence[npt.NDArray[np.generic]]) -> LongArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def block_mask(block: Block, size: int, window: int | None = None) -> BoolArray:
    """Which query (row) may attend to which key (column), bool (size, size), padded from n to ``size``.

    A padded row attends to column 0, so that its softmax is finite; nothing attends to a padded column.
    ``window``: keys at least that many positions back are out of reach (sliding-window attention).
    """
    prefix = len(block.prefix)
    mask = np.zeros((size, size), np.bool_)
    positions = np.zeros(size, np.int64)
    mask[:prefix, :prefix] = np.tri(prefix, dtype=np.bool_)
    positions[:prefix] = np.arange(prefix)
    start = prefix
    for length in block.branch_lengths:
        end = start + length
        mask[start:end, :prefix] = True
        mask[start:end, start:end] = np.tri(length, dtype=np.bool_)
        positions[start:end] = np.arange(prefix, prefix + length)
        start = end
    if window is not None:
        mask &= positions[:, None] - positions[None, :] < window
    mask[start:, 0] = True
    return mask

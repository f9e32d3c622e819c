"""Keys and values of the running rows, and the attention that reads them.

Legend: ``R`` rows held, ``B`` rows running (the first B), ``C`` capacity in tokens, ``K`` key/value heads, ``D`` width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.model.attention import AttentionCall, BlockLayout
from posttrain.model.packing import Block
from posttrain.rollout.native.prompts import prompt_places

GROWTH = 32
"""Capacity grows by this many tokens at a time, so that attention reads a contiguous, barely padded cache."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token costs: ``layers`` x 2 x ``kv_heads`` x ``head_dim`` numbers of ``dtype``."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token of one row."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


def round_up(tokens: int) -> int:
    """Capacity that holds ``tokens``."""
    return -(-tokens // GROWTH) * GROWTH


class KVCache:
    """Rows are dense: the running ones are the first B, and a row that leaves is replaced by the last one."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        self.shape = shape
        self._device = device
        self._data = torch.empty(0, dtype=shape.dtype, device=device)
        self.rows = 0
        self.capacity = 0
        self.peak_nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._data.numel() * self._data.element_size()

    def layer(self, layer: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some rows, each (rows, K, C, D), contiguous views."""
        return self._data[layer, 0, rows], self._data[layer, 1, rows]

    def reserve(self, rows: int, tokens: int, live_rows: int) -> None:
        """Make room for ``rows`` rows of ``tokens`` tokens, keeping the first ``live_rows``.

        What is too small is made anew in exactly the size asked for, so that the cache never holds more than the
        rows admitted together need.
        """
        capacity_needed, rows_needed = round_up(tokens), rows
        if live_rows and capacity_needed <= self.capacity and rows_needed <= self.rows:
            return
        if (capacity_needed, rows_needed) == (self.capacity, self.rows):
            return
        shape = self.shape
        fresh = torch.zeros(
            (shape.layers, 2, rows_needed, shape.kv_heads, capacity_needed, shape.head_dim),
            dtype=shape.dtype,
            device=self._device,
        )
        if live_rows:
            kept = min(self.capacity, capacity_needed)
            fresh[:, :, :live_rows, :, :kept] = self._data[:, :, :live_rows, :, :kept]
        self._data, self.rows, self.capacity = fresh, rows_needed, capacity_needed
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        self._data[:, :, target] = self._data[:, :, source]


class PrefillLayout(BlockLayout):
    """Packed prompts that attend as in training and leave their keys and values in the cache."""

    def __init__(
        self, blocks: Sequence[Block], owners: Sequence[Sequence[int]], cache: KVCache, device: torch.device
    ) -> None:
        """``owners[i]`` are the rows that get the prompt whose sequence has index i."""
        super().__init__(blocks, device)
        self._cache = cache
        taken: list[npt.NDArray[np.int64]] = []
        rows: list[int] = []
        for index, packed in prompt_places(blocks):
            taken += [packed] * len(owners[index])
            rows += owners[index]
        lengths = [len(packed) for packed in taken]
        self._rows = slice(0, max(rows) + 1)
        self._taken = torch.from_numpy(np.concatenate(taken)).to(device)
        self._target_rows = torch.from_numpy(np.repeat(np.array(rows, np.int64), lengths)).to(device)
        self._places = torch.from_numpy(np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])).to(device)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, (N, H, D)."""
        keys, values = self._cache.layer(call.layer, self._rows)
        keys[self._target_rows, :, self._places] = call.key.transpose(0, 1)[self._taken]
        values[self._target_rows, :, self._places] = call.value.transpose(0, 1)[self._taken]
        return super().attend(call)


class DecodeLayout:
    """One new token for each of some neighbouring rows, attending to that row's cache. N = rows."""

    def __init__(self, cache: KVCache, rows: slice, lengths: torch.Tensor) -> None:
        """``lengths`` int64 (rows,): tokens already cached in each row; the new token is stored at that place."""
        self._cache = cache
        self._rows = rows
        self._lengths = lengths
        self._row_index = torch.arange(len(lengths), device=lengths.device)
        self._masks: dict[int | None, torch.Tensor] = {}

    def _mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        if window not in self._masks:
            place = torch.arange(self._cache.capacity, device=self._lengths.device)[None]
            hidden = place > self._lengths[:, None]
            if window is not None:
                hidden |= place <= self._lengths[:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask[:, None, None]
        return self._masks[window]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, (rows, H, D)."""
        heads, rows, width = call.query.shape
        keys, values = self._cache.layer(call.layer, self._rows)
        kv_heads = keys.shape[1]
        keys[self._row_index, :, self._lengths] = call.key.transpose(0, 1)
        values[self._row_index, :, self._lengths] = call.value.transpose(0, 1)
        query = (call.query.transpose(0, 1) * call.scale).reshape(rows, kv_heads, heads // kv_heads, width)
        scores = torch.matmul(query, keys.transpose(-1, -2))
        if call.softcap is not None:
            scores = torch.tanh(scores / call.softcap) * call.softcap
        probs = torch.softmax(scores.add_(self._mask(call.window, scores.dtype)), dim=-1)
        return torch.matmul(probs, values).view(rows, heads, width)

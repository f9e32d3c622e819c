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

    def layer(self, layer: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first ``rows`` rows, each (B, K, C, D), contiguous views."""
        return self._data[layer, 0, :rows], self._data[layer, 1, :rows]

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

    def copy_prefix(self, source: int, targets: Sequence[int], tokens: int) -> None:
        """Copy the first ``tokens`` of a row to others."""
        if targets:
            index = torch.tensor(list(targets), device=self._device)
            prefix = self._data[:, :, source : source + 1, :, :tokens]
            self._data[:, :, :, :, :tokens].index_copy_(2, index, prefix.expand(-1, -1, len(targets), -1, -1, -1))

    def write_prompt(self, layer: int, row: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store a prompt's keys and values, (K, P, D) each."""
        self._data[layer, 0, row, :, : key.shape[1]] = key
        self._data[layer, 1, row, :, : value.shape[1]] = value


class PrefillLayout(BlockLayout):
    """Packed prompts that attend as in training and leave their keys and values in the cache."""

    def __init__(self, blocks: Sequence[Block], rows: Sequence[int], cache: KVCache, device: torch.device) -> None:
        super().__init__(blocks, device)
        self._spans: list[tuple[int, int, int]] = []
        self._cache = cache
        start = 0
        for block, row in zip(blocks, rows, strict=True):
            self._spans.append((row, start, start + len(block)))
            start += len(block)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, (N, H, D)."""
        for row, start, end in self._spans:
            self._cache.write_prompt(call.layer, row, call.key[:, start:end], call.value[:, start:end])
        return super().attend(call)


class DecodeLayout:
    """One new token per running row, attending to that row's cache. N = B."""

    def __init__(self, cache: KVCache, lengths: npt.NDArray[np.int64], device: torch.device) -> None:
        """``lengths`` (B,): tokens already cached in each row; the new token is stored at that place."""
        self._cache = cache
        self._rows = len(lengths)
        self._lengths = torch.from_numpy(lengths).to(device)
        self._row_index = torch.arange(self._rows, device=device)
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
        """Attention output, (B, H, D)."""
        heads, rows, width = call.query.shape
        keys, values = self._cache.layer(call.layer, rows)
        kv_heads = keys.shape[1]
        keys[self._row_index, :, self._lengths] = call.key.transpose(0, 1)
        values[self._row_index, :, self._lengths] = call.value.transpose(0, 1)
        query = (call.query.transpose(0, 1) * call.scale).reshape(rows, kv_heads, heads // kv_heads, width)
        scores = torch.matmul(query, keys.transpose(-1, -2))
        if call.softcap is not None:
            scores = torch.tanh(scores / call.softcap) * call.softcap
        probs = torch.softmax(scores.add_(self._mask(call.window, scores.dtype)), dim=-1)
        return torch.matmul(probs, values).view(rows, heads, width)

"""Attention over packed blocks, as one function of the transformers attention interface.

Every model runs with the attention implementation named ``posttrain``. It does not know how tokens are laid
out: the caller passes a ``layout`` through the model's keyword arguments, and the layout attends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from posttrain.model.packing import Block, block_mask

ATTENTION_NAME = "posttrain"

DENSE_SCORE_BYTES = 1 << 28
"""Scores of one attention call up to this size are materialised: on a CPU two matrix products and a softmax
are 3-4 times faster than the fused kernel at the lengths of a group; beyond it the fused kernel saves memory."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks for. ``query`` (H, N, D), ``key`` and ``value`` (K, N, D) with H a multiple of K."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    window: int | None
    softcap: float | None


class Layout(Protocol):
    """How the packed tokens see each other."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, (N, H, D)."""
        ...


def posttrain_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The registered function. ``query`` (1, H, N, D); returns (1, N, H, D) and no weights.

    Raises ValueError for what would silently change the policy: dropout, attention sinks, a call without layout.
    """
    if layout is None:
        raise ValueError("this model runs only through posttrain's packed forward: no layout was given")
    if dropout:
        raise ValueError(f"attention dropout {dropout} makes trainer and sampler different policies; set it to 0")
    if kwargs.get("s_aux") is not None:
        raise ValueError("attention sinks are not supported by posttrain's attention")
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    call = AttentionCall(layer, query[0], key[0], value[0], scale, sliding_window, softcap)
    return layout.attend(call).unsqueeze(0), None


def register_attention() -> None:
    """Make the implementation known to transformers. Idempotent."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, posttrain_attention)


class _GatherRows(torch.autograd.Function):
    """Rows picked by an index whose inverse is known: the backward is a gather too, never a scatter.

    ``index`` (R,) picks rows of (N, C); entries whose row is padding are ignored by ``inverse`` (N,), which names
    for every row of the input the one output row that carries its gradient.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad_outputs[0].index_select(0, inverse), None, None


class _DropRows(torch.autograd.Function):
    """The inverse of ``_GatherRows``: keep ``index``; the dropped rows get zero gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.rows = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        grad = grad_outputs[0]
        out = grad.new_zeros((ctx.rows, *grad.shape[1:]))
        out.index_copy_(0, index, grad)
        return out, None


class _Bucket:
    """Blocks of similar length, padded to one length and attended in one call. ``B`` blocks of ``n`` tokens."""

    def __init__(self, blocks: Sequence[Block], start: int, device: torch.device) -> None:
        self.blocks = blocks
        self.start = start
        self.end = start + sum(len(b) for b in blocks)
        self.size = max(len(b) for b in blocks)
        self.padded = any(len(b) != self.size for b in blocks)
        if self.padded:
            index = np.zeros((len(blocks), self.size), np.int64)
            inverse: list[np.ndarray[Any, np.dtype[np.int64]]] = []
            base = 0
            for row, block in enumerate(blocks):
                index[row, : len(block)] = np.arange(base, base + len(block))
                inverse.append(np.arange(row * self.size, row * self.size + len(block)))
                base += len(block)
            self.index = torch.from_numpy(index.reshape(-1)).to(device)
            self.inverse = torch.from_numpy(np.concatenate(inverse)).to(device)
        self._masks: dict[int | None, torch.Tensor] = {}
        self._device = device

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask (B, 1, 1, n, n): 0 where allowed, -inf elsewhere. The same for every layer of a kind."""
        if window not in self._masks:
            allowed = torch.from_numpy(np.stack([block_mask(b, self.size, window) for b in self.blocks]))
            additive = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -math.inf)
            self._masks[window] = additive[:, None, None].to(self._device)
        return self._masks[window]

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """(heads, N, D) -> (B, heads, n, D) for this bucket's tokens."""
        heads, _, width = tokens.shape
        flat = tokens[:, self.start : self.end].transpose(0, 1)
        if self.padded:
            flat = _GatherRows.apply(flat.reshape(-1, heads * width), self.index, self.inverse)
        return flat.reshape(len(self.blocks), self.size, heads, width).transpose(1, 2)

    def tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, n, heads, D) -> (tokens of the bucket, heads, D)."""
        _, _, heads, width = rows.shape
        flat = rows.reshape(-1, heads * width)
        if self.padded:
            flat = _DropRows.apply(flat, self.inverse)
        return flat.reshape(-1, heads, width)


class BlockLayout:
    """Packed blocks, each attending only within itself (see ``packing.block_mask``)."""

    def __init__(self, blocks: Sequence[Block], device: torch.device, max_padding: float = 1.25) -> None:
        """``blocks`` in the order in which their tokens are packed; neighbours of similar length share a call."""
        self.buckets: list[_Bucket] = []
        run: list[Block] = []
        start = 0
        for block in blocks:
            sizes = [len(b) for b in [*run, block]]
            if run and max(sizes) > max_padding * min(sizes):
                self.buckets.append(_Bucket(run, start, device))
                start = self.buckets[-1].end
                run = []
            run.append(block)
        if run:
            self.buckets.append(_Bucket(run, start, device))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, (N, H, D)."""
        outputs = [self._attend_bucket(bucket, call) for bucket in self.buckets]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_bucket(self, bucket: _Bucket, call: AttentionCall) -> torch.Tensor:
        query, key, value = bucket.rows(call.query), bucket.rows(call.key), bucket.rows(call.value)
        blocks, heads, size, width = query.shape
        kv_heads = key.shape[1]
        mask = bucket.mask(call.window, query.dtype)
        score_bytes = blocks * heads * size * size * query.element_size()
        dense = call.softcap is not None or (query.device.type == "cpu" and score_bytes <= DENSE_SCORE_BYTES)
        if dense:
            grouped = query.reshape(blocks, kv_heads, heads // kv_heads * size, width) * call.scale
            scores = torch.matmul(grouped, key.transpose(-1, -2)).view(blocks, kv_heads, heads // kv_heads, size, size)
            if call.softcap is not None:
                scores = torch.tanh(scores / call.softcap) * call.softcap
            probs = torch.softmax(scores + mask, dim=-1).view(blocks, kv_heads, -1, size)
            out = torch.matmul(probs, value).view(blocks, heads, size, width)
        else:
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask[:, :, 0], scale=call.scale, enable_gqa=heads != kv_heads
            )
        return bucket.tokens(out.transpose(1, 2))

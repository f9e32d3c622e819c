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


class _ToBlocks(torch.autograd.Function):
    """Rows of packed tokens picked into padded blocks. The inverse is known, so the backward is a gather too."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: _HeadOrder) -> torch.Tensor:
        ctx.order = order
        return rows.index_select(0, order.to_blocks)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        # What padding picked up again is dropped: each row gets its gradient from the one place that stands for it.
        return grad_outputs[0].index_select(0, ctx.order.to_tokens), None


class _ToTokens(torch.autograd.Function):
    """The inverse of ``_ToBlocks``: padding is dropped, and gets zero gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: _HeadOrder) -> torch.Tensor:
        ctx.order = order
        return rows.index_select(0, order.to_tokens)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad_outputs[0].index_select(0, ctx.order.to_blocks)
        return grad.index_fill_(0, ctx.order.padding, 0.0), None


@dataclass(frozen=True, slots=True)
class _HeadOrder:
    """How (token, head) rows and (block, head, place) rows correspond, for one number of heads.

    ``to_blocks`` int64 (B * heads * n,) picks token rows, ``to_tokens`` int64 (N * heads,) block rows;
    ``padding`` lists the block rows that stand for no token.
    """

    to_blocks: torch.Tensor
    to_tokens: torch.Tensor
    padding: torch.Tensor


class _Bucket:
    """Blocks of similar length, padded to one length and attended in one call. ``B`` blocks of ``n`` tokens."""

    def __init__(self, blocks: Sequence[Block], start: int, device: torch.device) -> None:
        self.blocks = blocks
        self.start = start
        self.end = start + sum(len(b) for b in blocks)
        self.size = max(len(b) for b in blocks)
        self._device = device
        self._masks: dict[int | None, torch.Tensor] = {}
        self._orders: dict[int, _HeadOrder] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask (B, 1, 1, n, n): 0 where allowed, -inf elsewhere. The same for every layer of a kind."""
        if window not in self._masks:
            allowed = torch.from_numpy(np.stack([block_mask(b, self.size, window) for b in self.blocks]))
            additive = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -math.inf)
            self._masks[window] = additive[:, None, None].to(self._device)
        return self._masks[window]

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """(heads, N, D) -> (B, heads, n, D) for this bucket's tokens, contiguous."""
        heads, _, width = tokens.shape
        flat = tokens[:, self.start : self.end].transpose(0, 1).reshape(-1, width)
        return _ToBlocks.apply(flat, self._order(heads)).view(len(self.blocks), heads, self.size, width)

    def tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, heads, n, D) -> (tokens of the bucket, heads, D)."""
        _, heads, _, width = rows.shape
        return _ToTokens.apply(rows.reshape(-1, width), self._order(heads)).view(-1, heads, width)

    def _order(self, heads: int) -> _HeadOrder:
        if heads not in self._orders:
            lengths = np.array([len(b) for b in self.blocks])
            place = np.arange(self.size)[None]
            real = place < lengths[:, None]
            token = np.where(real, (np.cumsum(lengths) - lengths)[:, None] + place, 0)
            to_blocks = token[:, None] * heads + np.arange(heads)[None, :, None]
            is_real = np.broadcast_to(real[:, None], to_blocks.shape).reshape(-1)
            to_tokens = np.empty(int(lengths.sum()) * heads, np.int64)
            to_tokens[to_blocks.reshape(-1)[is_real]] = np.flatnonzero(is_real)
            arrays = (to_blocks.reshape(-1), to_tokens, np.flatnonzero(~is_real))
            self._orders[heads] = _HeadOrder(*(torch.from_numpy(a.astype(np.int64)).to(self._device) for a in arrays))
        return self._orders[heads]


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
            grouped = query.view(blocks, kv_heads, heads // kv_heads * size, width) * call.scale
            scores = torch.matmul(grouped, key.transpose(-1, -2)).view(blocks, kv_heads, heads // kv_heads, size, size)
            if call.softcap is not None:
                scores = torch.tanh(scores / call.softcap) * call.softcap
            probs = torch.softmax(scores + mask, dim=-1).view(blocks, kv_heads, -1, size)
            out = torch.matmul(probs, value).view(blocks, heads, size, width)
        else:
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask[:, :, 0], scale=call.scale, enable_gqa=heads != kv_heads
            )
        return bucket.tokens(out)

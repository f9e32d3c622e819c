"""Trust regions: the surrogate loss of one token, and which tokens it leaves without gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posttrain.settings.objective import TrustRegion


@dataclass(frozen=True, slots=True)
class ClipMasks:
    """Bool (M,) each: which bound zeroes a token's gradient, and whether the ratio is outside the bounds at all."""

    low: torch.Tensor
    high: torch.Tensor
    dual: torch.Tensor
    out_of_bounds: torch.Tensor


def surrogate(ratio: torch.Tensor, advantages: torch.Tensor, spec: TrustRegion) -> torch.Tensor:
    """Token loss, shape (M,), gradient through ``ratio``.

    ``none``: ``-A r``. ``clip``: ``max(-A r, -A clip(r, 1 - low, 1 + high))``; with ``dual_clip`` c, where A < 0, at
    most ``-c A``. Sources: arXiv 1707.06347 (clip), 1912.09729 (dual clip), 2503.14476 (two bounds).
    """
    loss = -advantages * ratio
    if spec.kind == "none":
        return loss
    clipped = -advantages * ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high)
    loss = torch.maximum(loss, clipped)
    if spec.dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -spec.dual_clip * advantages), loss)
    return loss


def clip_masks(ratio: torch.Tensor, advantages: torch.Tensor, spec: TrustRegion) -> ClipMasks:
    """Where :func:`surrogate` has no gradient, by sign of the advantage."""
    below, above = ratio < 1.0 - spec.clip_low, ratio > 1.0 + spec.clip_high
    if spec.kind == "none":
        nowhere = torch.zeros_like(below)
        return ClipMasks(nowhere, nowhere, nowhere, nowhere)
    dual = (advantages < 0) & (ratio > spec.dual_clip) if spec.dual_clip is not None else torch.zeros_like(below)
    return ClipMasks((advantages < 0) & below, (advantages > 0) & above, dual, below | above)

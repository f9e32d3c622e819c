"""Trust regions: the loss of one token before anchor and aggregation, and which tokens a bound leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from posttrain.logprobs.corrections import Sequences
from posttrain.policy.ratios import LOGPROB_FLOOR, PolicyRatio
from posttrain.settings.objective import TrustRegion


@dataclass(frozen=True, slots=True)
class RegionInput:
    """Trained tokens of one micro-batch, (m,) each.

    ``logprobs`` and the ratio have gradient; ``denominator`` log-probs are those the ratio compares with; ``chosen``
    bool: tokens picked by covariance over the optimizer step; ``kl_weight`` the penalty's present weight.
    """

    logprobs: torch.Tensor
    denominator: torch.Tensor
    ratio: PolicyRatio
    advantages: torch.Tensor
    sequences: Sequences
    chosen: torch.Tensor
    kl_weight: float


@dataclass(frozen=True, slots=True)
class RegionResult:
    """``losses`` (m,) with gradient; bool (m,) each: ``low``, ``high``, ``dual`` which clip bound removes a token's
    gradient, ``out_of_bounds`` whether the ratio is outside the clip bounds at all, ``masked`` a mask removes it,
    ``capped`` a weight was held at its bound, ``silent`` no policy gradient for any of these reasons."""

    losses: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    dual: torch.Tensor
    out_of_bounds: torch.Tensor
    masked: torch.Tensor
    capped: torch.Tensor
    silent: torch.Tensor


def policy_losses(given: RegionInput, spec: TrustRegion) -> RegionResult:
    """Token losses under ``spec.kind``; see the settings of ``policy.trust_region`` for what each kind is.

    Sources: arXiv 1707.06347 (clip, KL penalty), 1912.09729 (dual clip), 2503.14476 (two bounds), 2507.20673
    (log_clip), 2506.13585 (clipped_weight), 2503.14286 (taper), 2602.04879 (divergence_mask), 2511.20347 (soft_gate),
    2505.22617 (clip_cov, kl_cov); prime-rl's losses (ratio_mask, log_ratio_penalty).
    """
    result = _KINDS[spec.kind](given, spec)
    if spec.log_ratio_penalty:
        result = replace(result, losses=result.losses + spec.log_ratio_penalty * given.ratio.token_log**2)
    return result


def score_function(logprobs: torch.Tensor, advantages: torch.Tensor) -> RegionResult:
    """``-A log pi`` without any ratio (arXiv 2402.14740; Williams 1992)."""
    return _result(-advantages * logprobs.clamp(min=LOGPROB_FLOOR), logprobs.detach() < LOGPROB_FLOOR)


def _result(losses: torch.Tensor, silent: torch.Tensor, **masks: torch.Tensor) -> RegionResult:
    nowhere = torch.zeros_like(losses, dtype=torch.bool)
    names = ("low", "high", "dual", "out_of_bounds", "masked", "capped")
    return RegionResult(losses, silent=silent, **{name: masks.get(name, nowhere) for name in names})


def _none(given: RegionInput, spec: TrustRegion) -> RegionResult:
    return _result(-given.advantages * given.ratio.value, given.ratio.clamped)


def _clip(given: RegionInput, spec: TrustRegion) -> RegionResult:
    advantages, ratio = given.advantages, given.ratio.value
    loss = -advantages * ratio
    loss = torch.maximum(loss, -advantages * ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high))
    value = ratio.detach()
    below, above = value < 1.0 - spec.clip_low, value > 1.0 + spec.clip_high
    low, high = (advantages < 0) & below, (advantages > 0) & above
    dual = torch.zeros_like(low)
    if spec.dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -spec.dual_clip * advantages), loss)
        dual = (advantages < 0) & (value > spec.dual_clip)
    silent = low | high | dual | given.ratio.clamped
    return _result(loss, silent, low=low, high=high, dual=dual, out_of_bounds=below | above)


def _log_clip(given: RegionInput, spec: TrustRegion) -> RegionResult:
    advantages, log = given.advantages, given.ratio.token_log
    clipped = torch.where(
        advantages > 0,
        log.clamp(max=spec.clip_high),
        torch.where(advantages < 0, log.clamp(min=-spec.clip_low), log),
    )
    ratio = given.sequences.means(clipped).exp()[given.sequences.index]
    value = log.detach()
    below, above = value < -spec.clip_low, value > spec.clip_high
    low, high = (advantages < 0) & below, (advantages > 0) & above
    clamped = given.ratio.raw_log != value
    return _result(-advantages * ratio, low | high | clamped, low=low, high=high, out_of_bounds=below | above)


def weight_bounds(spec: TrustRegion) -> tuple[float | None, float | None]:
    """The weight's bounds as ratios; ``None`` where there is none."""
    low, high = spec.weight_low, spec.weight_high
    if spec.weight_bounds == "absolute":
        return low, high
    return None if low is None else 1.0 - low, None if high is None else 1.0 + high


def _weighted(given: RegionInput, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``-A w log pi`` with a constant weight, and where the floor leaves it without gradient."""
    losses = -given.advantages * weight * given.logprobs.clamp(min=LOGPROB_FLOOR)
    return losses, given.logprobs.detach() < LOGPROB_FLOOR


def _outside(value: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    outside = torch.zeros_like(value, dtype=torch.bool)
    if low is not None:
        outside |= value < low
    if high is not None:
        outside |= value > high
    return outside


def _clipped_weight(given: RegionInput, spec: TrustRegion) -> RegionResult:
    low, high = weight_bounds(spec)
    value = given.ratio.value.detach()
    bounded = value if low is None and high is None else value.clamp(low, high)
    losses, silent = _weighted(given, bounded)
    return _result(losses, silent, capped=_outside(value, low, high))


def _taper(given: RegionInput, spec: TrustRegion) -> RegionResult:
    _, high = weight_bounds(spec)
    value, negative = given.ratio.value.detach(), given.advantages < 0
    bounded = value if high is None else value.clamp(max=high)
    losses, silent = _weighted(given, torch.where(negative, bounded, 1.0))
    return _result(losses, silent, capped=negative & _outside(value, None, high))


def _ratio_mask(given: RegionInput, spec: TrustRegion) -> RegionResult:
    masked = _outside(given.ratio.value.detach(), *weight_bounds(spec))
    losses = torch.where(masked, 0.0, -given.advantages * given.ratio.value)
    return _result(losses, masked | given.ratio.clamped, masked=masked)


@torch.no_grad()
def divergences(logprobs: torch.Tensor, denominator: torch.Tensor, spec: TrustRegion) -> torch.Tensor:
    """Divergence of each token's two-valued distribution (this token or another), (m,); arXiv 2602.04879."""
    p, q = logprobs.exp(), denominator.exp()
    if spec.divergence == "tv":
        return (q - p).abs()
    smallest = torch.finfo(p.dtype).eps
    p, q = p.clamp(smallest, 1.0 - smallest), q.clamp(smallest, 1.0 - smallest)
    return q * (q.log() - p.log()) + (1.0 - q) * (torch.log1p(-q) - torch.log1p(-p))


def _divergence_mask(given: RegionInput, spec: TrustRegion) -> RegionResult:
    beyond = divergences(given.logprobs, given.denominator, spec) > spec.divergence_bound
    if spec.divergence_direction == "away":
        rising = given.ratio.raw_log > 0
        falling = given.ratio.raw_log < 0
        beyond &= ((given.advantages > 0) & rising) | ((given.advantages < 0) & falling)
    _, high = weight_bounds(spec)
    value = given.ratio.value
    if high is None:
        losses, silent = -given.advantages * value, given.ratio.clamped
    else:
        losses, silent = _weighted(given, value.detach().clamp(max=high))
    capped = _outside(value.detach(), None, high) & ~beyond
    return _result(torch.where(beyond, 0.0, losses), beyond | silent, masked=beyond, capped=capped)


def _soft_gate(given: RegionInput, spec: TrustRegion) -> RegionResult:
    tau = torch.full_like(given.advantages, spec.gate_negative).masked_fill(given.advantages > 0, spec.gate_positive)
    gate = (4.0 / tau) * torch.sigmoid(tau * (given.ratio.value - 1.0))
    return _result(-given.advantages * gate, given.ratio.clamped)


def _kl_penalty(given: RegionInput, spec: TrustRegion) -> RegionResult:
    divergence = given.ratio.value - 1.0 - given.ratio.token_log
    losses = -given.advantages * given.ratio.value + given.kl_weight * divergence
    return _result(losses, given.ratio.clamped)


def _clip_cov(given: RegionInput, spec: TrustRegion) -> RegionResult:
    clipped = _clip(given, spec)
    losses = torch.where(given.chosen, 0.0, clipped.losses)
    return replace(clipped, losses=losses, masked=given.chosen, silent=clipped.silent | given.chosen)


def _kl_cov(given: RegionInput, spec: TrustRegion) -> RegionResult:
    penalty = torch.where(given.chosen, spec.covariance_weight * given.ratio.token_log.abs(), 0.0)
    return _result(-given.advantages * given.ratio.value + penalty, given.ratio.clamped)


_KINDS: dict[str, Callable[[RegionInput, TrustRegion], RegionResult]] = {
    "none": _none,
    "clip": _clip,
    "log_clip": _log_clip,
    "clipped_weight": _clipped_weight,
    "taper": _taper,
    "ratio_mask": _ratio_mask,
    "divergence_mask": _divergence_mask,
    "soft_gate": _soft_gate,
    "kl_penalty": _kl_penalty,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
}

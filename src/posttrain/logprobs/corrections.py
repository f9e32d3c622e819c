"""Corrections of the gap between sampler and trainer: weights, rejections, masks.

``w = exp(proximal - sampler)`` per token. Everything here is a constant of the update: no gradient passes through.
Legend: ``m`` trained tokens of one micro-batch, ``n`` sequences among them. Sources: verl's rollout correction and the
notes it cites; TIS (Yao, Liu et al. 2025), IcePop (Ant Group 2025), the mask of DeepSeek-V3.2 (arXiv 2512.02556).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posttrain.settings.objective import LOG_RATIO_CLAMP, Correction


@dataclass(frozen=True, slots=True)
class Sequences:
    """Which tokens belong together: ``index`` int64 (m,) from 0 to n - 1, ``lengths`` (n,) their tokens."""

    index: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, sequence_index: torch.Tensor) -> Sequences:
        """From any numbers, (m,). A sequence is whole within a micro-batch."""
        names, index = torch.unique(sequence_index, return_inverse=True)
        return cls(index, torch.bincount(index, minlength=names.numel()))

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over each sequence's tokens, (n,), differentiable."""
        return values.new_zeros(self.lengths.numel()).index_add(0, self.index, values)

    def means(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over each sequence's tokens, (n,), differentiable."""
        return self.sums(values) / self.lengths

    def any(self, flags: torch.Tensor) -> torch.Tensor:
        """True where a sequence has a flagged token, bool (n,)."""
        return self.sums(flags.double()) > 0


@dataclass(frozen=True, slots=True)
class CorrectionResult:
    """``weights`` (m,) before any normalisation; ``kept`` bool (m,) false where a token is dropped (its weight is 0);
    ``capped`` bool (m,) where a bound changed the weight without dropping it."""

    weights: torch.Tensor
    kept: torch.Tensor
    capped: torch.Tensor


@torch.no_grad()
def correction_weights(
    proximal: torch.Tensor, sampler: torch.Tensor, sequences: Sequences, spec: Correction
) -> CorrectionResult:
    """Weights and drops from the log-probs (m,) before the update. Log ratios are held within +-20 before ``exp``;
    two infinite log-probs of one sign count as equal.

    - ``token`` weights are w, ``sequence`` weights the product of w over the sequence's trained tokens
    - ``truncate``: min(w, high); ``clip``: within [low, high]; ``mask``: 0 outside
    - ``geometric``: a sequence stays if exp(mean log w) is in [reject_low, reject_high]; ``extreme``: if every w is;
      ``k3``: if the mean of w - 1 - log w is at most reject_high
    - ``veto``: a sequence with any w below it is dropped
    """
    token = torch.nan_to_num(proximal - sampler, nan=0.0).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    ratio = token.exp()
    kept = torch.ones_like(ratio, dtype=torch.bool)
    capped = torch.zeros_like(kept)
    weights = torch.ones_like(ratio)
    if spec.weight != "none":
        log_weight = token if spec.weight == "token" else sequences.sums(token)[sequences.index]
        weights = log_weight.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()
        outside = (weights > spec.high) | ((weights < spec.low) if spec.rule != "truncate" else False)
        if spec.rule == "mask":
            kept &= ~outside
        else:
            capped = outside
            weights = weights.clamp(spec.low if spec.rule == "clip" else None, spec.high)
    kept &= _stays(token, ratio, sequences, spec)[sequences.index]
    return CorrectionResult(torch.where(kept, weights, 0.0), kept, capped & kept)


def _stays(token: torch.Tensor, ratio: torch.Tensor, sequences: Sequences, spec: Correction) -> torch.Tensor:
    stays = torch.ones_like(sequences.lengths, dtype=torch.bool)
    if spec.reject == "geometric":
        mean = sequences.means(token).exp()
        stays &= (mean >= spec.reject_low) & (mean <= spec.reject_high)
    elif spec.reject == "extreme":
        stays &= ~sequences.any((ratio < spec.reject_low) | (ratio > spec.reject_high))
    elif spec.reject == "k3":
        stays &= sequences.means(torch.expm1(token) - token) <= spec.reject_high
    if spec.veto is not None:
        stays &= ~sequences.any(ratio < spec.veto)
    return stays


@torch.no_grad()
def off_policy_mask(
    logprobs: torch.Tensor, sampler: torch.Tensor, advantages: torch.Tensor, sequences: Sequences, bound: float
) -> torch.Tensor:
    """Tokens that stay, bool (m,): all but those of a sequence whose advantage is negative and whose mean of
    ``sampler - logprobs`` (the policy now) exceeds ``bound``. Source: arXiv 2512.02556."""
    gap = torch.nan_to_num(sampler - logprobs, nan=0.0).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    left_behind = (sequences.means(gap) > bound) & (sequences.means(advantages) < 0)
    return ~left_behind[sequences.index]

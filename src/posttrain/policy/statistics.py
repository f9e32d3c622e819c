"""What the objective saw, as partial sums that add over micro-batches and ranks.

Names are those of the signal registry; all are of the trained tokens. Those of rows without a backward pass belong to
them: whether rows with advantage 0 are skipped or computed changes no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from posttrain.policy.ratios import PolicyRatio
    from posttrain.policy.trust_region import RegionResult

_LOG_RATIO_LIMIT = 300.0
"""Raw log ratios are bounded here for the statistics alone, so that w^2 stays finite in float64."""


class Total(IntEnum):
    """Sums over tokens; the position in ``ObjectiveStatistics.totals``."""

    TOKENS = 0
    LOSS = 1
    CLIP_LOW = 2
    CLIP_HIGH = 3
    CLIP_DUAL = 4
    OUT_OF_BOUNDS = 5
    CLAMPED = 6
    WITH_GRADIENT = 7
    RATIO = 8
    RATIO_SQUARED = 9
    KL = 10
    NEGATIVE_LOGPROB = 11
    ENTROPY = 12
    ENTROPY_TOKENS = 13
    ANCHOR_KL = 14
    ANCHOR_TOKENS = 15
    MASKED = 16
    WEIGHT_CAPPED = 17
    CORRECTION = 18
    CORRECTION_CAPPED = 19
    REJECTED = 20
    CORRECTED_TOKENS = 21


@dataclass(frozen=True, slots=True)
class Corrected:
    """The correction of the trained tokens, (m,) each: ``weights``, bool ``kept`` and ``capped``."""

    weights: torch.Tensor
    kept: torch.Tensor
    capped: torch.Tensor


@dataclass(frozen=True, slots=True)
class ObjectiveStatistics:
    """Partial statistics of one or more micro-batches, on the device of the batch; nothing is synchronised until
    :meth:`finalize`.

    ``totals`` float64 (22,) in the order of :class:`Total`; ``log_ratio_max`` and ``log_ratio_min`` float64 scalars,
    -inf and +inf where no token was trained.
    """

    totals: torch.Tensor
    log_ratio_max: torch.Tensor
    log_ratio_min: torch.Tensor

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> ObjectiveStatistics:
        """The neutral element of ``+``."""
        infinity = torch.tensor(float("inf"), dtype=torch.float64, device=device)
        return cls(torch.zeros(len(Total), dtype=torch.float64, device=device), -infinity, infinity)

    def __add__(self, other: ObjectiveStatistics) -> ObjectiveStatistics:
        return ObjectiveStatistics(
            self.totals + other.totals,
            torch.maximum(self.log_ratio_max, other.log_ratio_max),
            torch.minimum(self.log_ratio_min, other.log_ratio_min),
        )

    @property
    def mean_divergence(self) -> float | None:
        """Mean of ``r - 1 - log r`` over the tokens, nats; ``None`` without one or where it is not finite."""
        tokens, total = self.totals[Total.TOKENS], self.totals[Total.KL]
        return float(total / tokens) if float(tokens) > 0 and bool(total.isfinite()) else None

    def finalize(self, trained_tokens: int, steps: int = 1) -> dict[str, float]:
        """Values by signal name.

        ``trained_tokens``: ``StepTotals.tokens``, summed over the optimizer steps merged here; ``steps``: how many
        those are (the loss is their mean). Quantities nobody measured are absent, not 0. Shares of what has a gradient
        are divided by ``trained_tokens``, means by the tokens the objective was given; in an update both are one.
        """
        total = dict(zip(Total, self.totals.tolist(), strict=True))
        tokens, trained = total[Total.TOKENS], float(max(trained_tokens, 1))
        values = {
            "policy/loss": total[Total.LOSS] / max(steps, 1),
            "policy/clip_fraction_low": total[Total.CLIP_LOW] / trained,
            "policy/clip_fraction_high": total[Total.CLIP_HIGH] / trained,
            "policy/clip_fraction_dual": total[Total.CLIP_DUAL] / trained,
            "policy/gradient_token_share": total[Total.WITH_GRADIENT] / trained,
            "policy/region_masked_share": total[Total.MASKED] / trained,
            "policy/weight_capped_share": total[Total.WEIGHT_CAPPED] / trained,
        }
        if corrected := total[Total.CORRECTED_TOKENS]:
            values |= {
                "policy/correction_mean": total[Total.CORRECTION] / corrected,
                "policy/correction_capped_share": total[Total.CORRECTION_CAPPED] / corrected,
                "policy/rejected_share": total[Total.REJECTED] / corrected,
            }
        if tokens:
            values |= {
                "policy/out_of_bounds_share": total[Total.OUT_OF_BOUNDS] / tokens,
                "policy/ratio_clamped_share": total[Total.CLAMPED] / tokens,
                "policy/ratio_mean": total[Total.RATIO] / tokens,
                "policy/ratio_max": float(self.log_ratio_max.exp()),
                "policy/ratio_min": float(self.log_ratio_min.exp()),
                "policy/ratio_ess": total[Total.RATIO] ** 2 / max(tokens * total[Total.RATIO_SQUARED], 1e-300),
                "policy/approx_kl": total[Total.KL] / tokens,
                "policy/sampled_entropy": total[Total.NEGATIVE_LOGPROB] / tokens,
            }
        if total[Total.ENTROPY_TOKENS]:
            values["policy/entropy"] = total[Total.ENTROPY] / total[Total.ENTROPY_TOKENS]
        if total[Total.ANCHOR_TOKENS]:
            values["policy/anchor_kl"] = total[Total.ANCHOR_KL] / total[Total.ANCHOR_TOKENS]
        return values


@torch.no_grad()
def token_statistics(
    *,
    loss: torch.Tensor,
    logprobs: torch.Tensor,
    ratio: PolicyRatio,
    advantages: torch.Tensor,
    region: RegionResult,
    corrected: Corrected | None,
    anchor_kl: torch.Tensor | None,
    entropies: torch.Tensor | None,
) -> ObjectiveStatistics:
    """Statistics of one micro-batch from its trained tokens, all (m,) except ``loss`` (scalar).

    Ratios are of single tokens and raw, whatever the row's level; ``anchor_kl`` may be of fewer tokens.
    """
    empty = ObjectiveStatistics.empty(logprobs.device)
    if logprobs.numel() == 0:
        return empty
    raw = ratio.raw_log.double().clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    values = raw.exp()
    with_gradient = (advantages != 0) & ~region.silent
    if corrected is not None:
        with_gradient &= corrected.kept
    zero = empty.totals[0]
    count = zero + logprobs.numel()
    totals = {
        Total.TOKENS: count,
        Total.LOSS: loss.double(),
        Total.CLIP_LOW: region.low.sum(),
        Total.CLIP_HIGH: region.high.sum(),
        Total.CLIP_DUAL: region.dual.sum(),
        Total.OUT_OF_BOUNDS: region.out_of_bounds.sum(),
        Total.CLAMPED: ratio.clamped.sum(),
        Total.WITH_GRADIENT: with_gradient.sum(),
        Total.RATIO: values.sum(),
        Total.RATIO_SQUARED: (values * values).sum(),
        Total.KL: (values - 1.0 - raw).sum(),
        Total.NEGATIVE_LOGPROB: -logprobs.double().sum(),
        Total.ENTROPY: zero if entropies is None else entropies.double().sum(),
        Total.ENTROPY_TOKENS: zero if entropies is None else count,
        Total.ANCHOR_KL: zero if anchor_kl is None else anchor_kl.double().sum(),
        Total.ANCHOR_TOKENS: zero if anchor_kl is None else zero + anchor_kl.numel(),
        Total.MASKED: region.masked.sum(),
        Total.WEIGHT_CAPPED: region.capped.sum(),
        Total.CORRECTION: zero if corrected is None else corrected.weights.double().sum(),
        Total.CORRECTION_CAPPED: zero if corrected is None else corrected.capped.sum(),
        Total.REJECTED: zero if corrected is None else (~corrected.kept).sum(),
        Total.CORRECTED_TOKENS: zero if corrected is None else count,
    }
    stacked = torch.stack([totals[name].double() for name in Total])
    return ObjectiveStatistics(stacked, raw.max(), raw.min())

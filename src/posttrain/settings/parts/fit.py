"""Values and parts that contradict each other: each function says why, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from posttrain.settings.parts.ratio import SEQUENCE_LEVELS

if TYPE_CHECKING:
    from posttrain.settings.objective import ObjectiveSpec

_TOKEN_RATIO = ("ratio_mask", "divergence_mask", "soft_gate", "kl_penalty", "clip_cov", "kl_cov")
_SMALLEST_USEFUL = 0.05


class PartError(ValueError):
    """Values of one part, ``part``, that do not go together."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


def check_fit(spec: ObjectiveSpec) -> None:
    """Raises PartError, or ValueError where several parts contradict each other, with the reason."""
    for name in ("advantage", "trust_region", "correction"):
        if problem := getattr(spec, name).problem:
            raise PartError(name, problem)
    for check in _CHECKS:
        if reason := check(spec):
            raise ValueError(reason)


def _region_needs_ratio(spec: ObjectiveSpec) -> str:
    if spec.ratio.level == "none" and (spec.trust_region.kind != "none" or spec.trust_region.log_ratio_penalty):
        return f"trust_region.kind = {spec.trust_region.kind!r} bounds a ratio, so it needs ratio.level = 'token'"
    return ""


def _level_fits_region(spec: ObjectiveSpec) -> str:
    kind, level = spec.trust_region.kind, spec.ratio.level
    if kind in _TOKEN_RATIO and level in SEQUENCE_LEVELS:
        return f"trust_region.kind = {kind!r} judges each token, so it needs ratio.level = 'token', not {level!r}"
    if kind == "log_clip" and level != "sequence":
        return "trust_region.kind = 'log_clip' clips inside a geometric mean, so it needs ratio.level = 'sequence'"
    if kind == "taper" and level == "sequence_token":
        return "trust_region.kind = 'taper' holds the ratio constant, so ratio.level = 'sequence_token' has no meaning"
    return ""


def _level_fits_aggregation(spec: ObjectiveSpec) -> str:
    level, kind = spec.ratio.level, spec.aggregation.kind
    whole = spec.trust_region.kind not in ("clipped_weight", "taper")
    if level in ("sequence", "product") and whole and kind != "sequence_mean":
        return (
            f"ratio.level = {level!r} gives a sequence one loss, so aggregation.kind must be 'sequence_mean'; "
            f"{kind!r} would count it once per token"
        )
    return ""


def _level_fits_bounds(spec: ObjectiveSpec) -> str:
    region = spec.trust_region
    if (
        spec.ratio.level in ("sequence", "sequence_token")
        and region.kind == "clip"
        and min(region.clip_low, region.clip_high) > _SMALLEST_USEFUL
    ):
        return (
            f"trust_region.clip_low = {region.clip_low:g} is a bound for token ratios: a geometric mean over a "
            f"sequence moves by some 0.0004, so it would never clip. Use 3e-4 and 4e-4"
        )
    return ""


def _mismatch_is_corrected_once(spec: ObjectiveSpec) -> str:
    correction = spec.correction
    if correction.weight != "none" and (spec.ratio.level != "none" and spec.ratio.denominator == "sampler"):
        return (
            f"ratio.denominator = 'sampler' already corrects the sampler's log-probs, so correction.weight = "
            f"{correction.weight!r} would count the mismatch twice. Set one of them to 'proximal' or 'none'"
        )
    return ""


def _kept_counts_are_known(spec: ObjectiveSpec) -> str:
    if spec.correction.denominator == "kept" and spec.advantage.scale == "token_whiten":
        return (
            "correction.denominator = 'kept' drops tokens after advantage.scale = 'token_whiten' has counted them: "
            "use denominator = 'all'"
        )
    return ""


_CHECKS: tuple[Callable[[ObjectiveSpec], str], ...] = (
    _region_needs_ratio,
    _level_fits_region,
    _level_fits_aggregation,
    _level_fits_bounds,
    _mismatch_is_corrected_once,
    _kept_counts_are_known,
)

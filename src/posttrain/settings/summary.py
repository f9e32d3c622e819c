"""An objective in a few words, for tables of algorithms."""

from __future__ import annotations

from posttrain.settings.objective import ObjectiveSpec, TrustRegion
from posttrain.settings.tree import PolicySettings


def advantage_words(spec: ObjectiveSpec) -> str:
    """Baseline and scale: ``group_mean / group_std``."""
    advantage = spec.advantage
    words = advantage.baseline if advantage.scale == "none" else f"{advantage.baseline} / {advantage.scale}"
    return f"{words}, each part" if advantage.combine == "parts" else words


def ratio_words(spec: ObjectiveSpec) -> str:
    """Level and denominator of the ratio: ``token to sampler``; ``none`` without one."""
    ratio = spec.ratio
    return ratio.level if ratio.level == "none" or ratio.denominator == "proximal" else f"{ratio.level} to sampler"


def bound_words(spec: ObjectiveSpec) -> str:
    """What bounds the update: ``clip 0.8 to 1.28``, with the correction's weight where there is one."""
    words = [_region(spec.trust_region)]
    if spec.trust_region.log_ratio_penalty:
        words.append(f"{spec.trust_region.log_ratio_penalty:g} (log ratio)^2")
    correction = spec.correction
    if correction.weight != "none":
        words.append(f"{correction.weight} weight, {correction.rule} at {correction.high:g}")
    if correction.reject != "none":
        words.append(f"rejects by {correction.reject}")
    if correction.off_policy_mask is not None:
        words.append(f"off-policy mask {correction.off_policy_mask:g}")
    return ", ".join(words)


def composed(policy: PolicySettings, spec: ObjectiveSpec) -> str:
    """The objective of a run in one line: its row, what replaces the row's values, and what comes of both."""
    parts = {name: getattr(policy, name) for name in ObjectiveSpec.model_fields}
    changes = [
        f"{name}.{field} = {getattr(part, field)}"
        for name, part in parts.items()
        if part is not None
        for field in type(part).model_fields
        if field in part.model_fields_set
    ]
    row = f"{policy.algorithm} with {', '.join(changes)}" if changes else policy.algorithm
    pull = f"{spec.anchor.weight:g} {spec.anchor.estimator} in the {spec.anchor.place}"
    anchor = pull if spec.anchor.weight else "none"
    words = (
        f"advantage {advantage_words(spec)}",
        f"ratio {ratio_words(spec)}",
        bound_words(spec),
        f"anchor {anchor}",
        spec.aggregation.kind,
    )
    return f"policy.algorithm = {row}: {'; '.join(words)}"


def _region(region: TrustRegion) -> str:
    low, high = region.weight_low, region.weight_high
    cap = "" if high is None else f" at {high:g}"
    if region.kind in ("clip", "clip_cov"):
        words = f"clip {1 - region.clip_low:g} to {1 + region.clip_high:g}"
        words += "" if region.dual_clip is None else f", dual {region.dual_clip:g}"
        return words if region.kind == "clip" else f"{words}, {region.covariance_share:g} dropped by covariance"
    by_kind = {
        "none": "no bound",
        "log_clip": f"log clip -{region.clip_low:g} to {region.clip_high:g}",
        "clipped_weight": f"weight{cap or ' unbounded'}",
        "taper": f"weight of negatives{cap}",
        "ratio_mask": f"mask outside {low or 0:g} to {'inf' if high is None else f'{high:g}'}",
        "divergence_mask": f"{region.divergence} mask at {region.divergence_bound:g}"
        + ("" if high is None else f", weight{cap}"),
        "soft_gate": f"soft gate {region.gate_positive:g} / {region.gate_negative:g}",
        "kl_penalty": f"KL penalty {region.kl_weight:g}"
        + ("" if region.kl_target is None else f" towards {region.kl_target:g}"),
        "kl_cov": f"|log ratio| on {region.covariance_share:g} by covariance",
    }
    return by_kind[region.kind]

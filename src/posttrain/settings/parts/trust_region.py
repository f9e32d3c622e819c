"""Trust regions, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting

CLIPS = ("clip", "log_clip", "clip_cov")
"""Kinds bounded by ``clip_low`` and ``clip_high``."""

_READS: dict[str, tuple[str, ...]] = {
    "none": ("log_ratio_penalty",),
    "clip": ("clip_low", "clip_high", "dual_clip", "log_ratio_penalty"),
    "log_clip": ("clip_low", "clip_high", "log_ratio_penalty"),
    "clipped_weight": ("weight_low", "weight_high", "weight_bounds", "log_ratio_penalty"),
    "taper": ("weight_high", "weight_bounds", "log_ratio_penalty"),
    "ratio_mask": ("weight_low", "weight_high", "weight_bounds", "log_ratio_penalty"),
    "divergence_mask": (
        "divergence",
        "divergence_bound",
        "divergence_direction",
        "weight_high",
        "weight_bounds",
        "log_ratio_penalty",
    ),
    "soft_gate": ("gate_positive", "gate_negative", "log_ratio_penalty"),
    "kl_penalty": ("kl_weight", "kl_target", "log_ratio_penalty"),
    "clip_cov": (
        "clip_low",
        "clip_high",
        "covariance_share",
        "covariance_low",
        "covariance_high",
        "log_ratio_penalty",
    ),
    "kl_cov": ("covariance_share", "covariance_weight", "log_ratio_penalty"),
}


class TrustRegion(Section):
    """``[policy.trust_region]``: how far the policy may move on one batch."""

    kind: Literal[
        "none",
        "clip",
        "log_clip",
        "clipped_weight",
        "taper",
        "ratio_mask",
        "divergence_mask",
        "soft_gate",
        "kl_penalty",
        "clip_cov",
        "kl_cov",
    ] = setting(
        "clip",
        "`none`: -A r. `clip`: no gradient once A > 0 and ratio > 1 + clip_high, or A < 0 and ratio < 1 - clip_low. "
        "`log_clip`: the same with bounds on the log ratio of each token, inside a sequence's geometric mean. "
        "`clipped_weight`: -A log pi times the ratio held within weight bounds, as a constant: never without gradient. "
        "`taper`: that weight capped where A < 0 alone, and 1 elsewhere. `ratio_mask`: -A r within the weight bounds, "
        "nothing outside. `divergence_mask`: -A log pi times the capped ratio, nothing where the probability moved "
        "further than divergence_bound. `soft_gate`: -A (4/tau) sigmoid(tau (r - 1)). `kl_penalty`: -A r + kl_weight "
        "KL(denominator || policy). `clip_cov`: `clip`, and no gradient for a random few of the tokens whose "
        "covariance of log-prob and advantage is high. `kl_cov`: -A r, and covariance_weight |log r| on the tokens of "
        "highest covariance.",
        reason="PPO's one-sided clip, the field's default",
    )
    clip_low: float = setting(
        0.2,
        "How far below 1 the ratio (`log_clip`: below 0 the log ratio) may fall where the advantage is negative.",
        reason="0.2 in TRL, verl, OpenRLHF and NeMo-RL",
        ge=0.0,
        le=1.0,
    )
    clip_high: float = setting(
        0.2,
        "How far above 1 the ratio (`log_clip`: above 0 the log ratio) may rise where the advantage is positive.",
        reason="symmetric with clip_low; DAPO raises it to 0.28 so that rare tokens can grow",
        ge=0.0,
    )
    dual_clip: float | None = setting(
        None,
        "Bound c > 1 on the ratio where the advantage is negative: the loss there is at most -c A. Absent: none.",
        reason="off, as in the papers of these rows (verl's default is 3); with one update per batch it never acts",
        gt=1.0,
    )
    weight_low: float | None = setting(
        None,
        "Lower bound of the weight. Absent: none.",
        reason="a weight below 1 only slows a token down; the papers leave it free",
        ge=0.0,
    )
    weight_high: float | None = setting(
        None,
        "Upper bound of the weight. Absent: none.",
        reason="the rows that use a weight state their own",
        gt=0.0,
    )
    weight_bounds: Literal["absolute", "distance"] = setting(
        "absolute",
        "`absolute`: the bounds are ratios themselves, as in TRL; `distance`: they are distances from 1, so the ratio "
        "is held between 1 - weight_low and 1 + weight_high, as in verl, NeMo-RL and slime.",
        reason="implementations of CISPO read the same number in both ways; written out, it cannot be misread",
    )
    divergence: Literal["tv", "kl"] = setting(
        "tv",
        "Divergence of a token's probability p under the policy from q under the denominator: `tv`: |q - p|; `kl`: of "
        "the two-valued distributions, q log(q/p) + (1-q) log((1-q)/(1-p)).",
        reason="the paper's usual choice; a ratio punishes rare tokens for moves that hardly change the policy",
    )
    divergence_bound: float = setting(
        0.15, "Largest divergence that still gets a gradient.", reason="the paper's for `tv`; 0.05 for `kl`", gt=0.0
    )
    divergence_direction: Literal["away", "any"] = setting(
        "away",
        "`away`: masks only moves that the advantage would push further; `any`: every token beyond the bound.",
        reason="a token on its way back should not be stopped",
    )
    gate_positive: float = setting(1.0, "tau of the soft gate where A > 0.", reason="the paper's", gt=0.0)
    gate_negative: float = setting(
        1.05, "tau of the soft gate where A <= 0.", reason="the paper's: negative updates fade sooner", gt=0.0
    )
    kl_weight: float = setting(
        1.0, "Weight beta of the KL penalty; with kl_target, its start.", reason="PPO's first value in practice", gt=0.0
    )
    kl_target: float | None = setting(
        None,
        "Divergence at which the weight stays: above 1.5 times it the weight doubles, below 1/1.5 of it halves, after "
        "each optimizer step that measured one. Absent: the weight is fixed.",
        reason="a fixed weight is comparable between runs; 0.01 was common on control tasks",
        gt=0.0,
    )
    covariance_share: float = setting(
        2e-4,
        "Share of the step's trained tokens that is chosen by covariance, rounded down but at least 1.",
        reason="the official scripts'",
        gt=0.0,
        le=1.0,
    )
    covariance_low: float = setting(1.0, "Lower bound of the covariance of candidates.", reason="the official script's")
    covariance_high: float = setting(
        5.0, "Upper bound of the covariance of candidates.", reason="the official script's; outliers are left alone"
    )
    covariance_weight: float = setting(
        1.0, "Weight of |log ratio| on the chosen tokens.", reason="the official script's", gt=0.0
    )
    log_ratio_penalty: float = setting(
        0.0,
        "Weight of (log ratio)^2 on every trained token, towards the denominator policy.",
        reason="off except in prime-rl (0.001)",
        ge=0.0,
    )

    @property
    def problem(self) -> str:
        """Why the values do not go together; empty if they do. Judged with the row's values in it."""
        low, high = self.weight_low, self.weight_high
        if self.weight_bounds == "absolute" and low is not None and high is not None and low > high:
            return f"weight_low = {low:g} is above weight_high = {high:g}"
        if self.covariance_low >= self.covariance_high:
            return f"covariance_low = {self.covariance_low:g} is not below covariance_high = {self.covariance_high:g}"
        return ""

    @property
    def read(self) -> frozenset[str]:
        """Names of the fields that this kind reads; the others have no effect."""
        return frozenset(("kind", *_READS[self.kind]))

    @property
    def chooses_by_covariance(self) -> bool:
        """True if tokens are chosen over the whole optimizer step before its first backward pass."""
        return self.kind in ("clip_cov", "kl_cov")

    @property
    def speaks_without_advantage(self) -> bool:
        """True if a token of advantage 0 may have a gradient."""
        return self.log_ratio_penalty > 0 or self.kind in ("kl_penalty", "kl_cov")

"""Corrections of the gap between sampler and trainer, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class Correction(Section):
    """``[policy.correction]``: what is done about tokens that sampler and trainer rate differently.

    ``w = exp(proximal - sampler log-prob)`` per token; every weight is a constant of the update.
    """

    weight: Literal["none", "token", "sequence"] = setting(
        "none",
        "What the token losses are multiplied by: nothing, each token's w, or the product of w over its sequence.",
        reason="the native engine samples with the trainer's own code; an engine of its own wants `token`",
        assumes="synchronous, native engine",
    )
    rule: Literal["truncate", "clip", "mask"] = setting(
        "truncate",
        "What happens beyond the bounds: `truncate`: min(w, high); `clip`: held within low and high; `mask`: 0 "
        "outside of them (IcePop for tokens, MIS for sequences).",
        reason="truncated importance sampling keeps every token",
    )
    low: float = setting(0.0, "Lower bound of the weight, for `clip` and `mask`.", reason="0.5 for IcePop", ge=0.0)
    high: float = setting(
        2.0, "Upper bound of the weight.", reason="2 in verl and slime; 5 for IcePop, 3 for TRL's sequence mask", gt=0.0
    )
    normalize: bool = setting(
        False,
        "Divide the weights by their mean over the step's trained tokens, after the rule.",
        reason="optional everywhere; hides a common shift of both sides",
    )
    reject: Literal["none", "geometric", "extreme", "k3"] = setting(
        "none",
        "Drops whole sequences: `geometric` where the geometric mean of w leaves [reject_low, reject_high]; `extreme` "
        "where any token's w does; `k3` where the mean of w - 1 - log w exceeds reject_high.",
        reason="selects by disagreement, and so by length and content; use it knowingly",
    )
    reject_low: float = setting(
        0.99, "Lower bound for `geometric` and `extreme`.", reason="0.99 to 0.999 in use for `geometric`", ge=0.0
    )
    reject_high: float = setting(
        1.01, "Upper bound of `reject`.", reason="1.001 to 1.01 in use for `geometric`, 0.001 to 0.01 for `k3`", gt=0.0
    )
    veto: float | None = setting(
        None,
        "Drops a whole sequence if any token's w is below it. Absent: none does.",
        reason="1e-4 in slime and older verl",
        gt=0.0,
        lt=1.0,
    )
    off_policy_mask: float | None = setting(
        None,
        "Drops a sequence of negative advantage whose mean of sampler minus current log-prob exceeds it. Absent: none.",
        reason="0.5 is TRL's suggestion (slime: 1e-4)",
        gt=0.0,
    )
    denominator: Literal["all", "kept"] = setting(
        "all",
        "Whether dropped tokens and sequences still count in the aggregation's denominators.",
        reason="with `all` (AReaL, slime) dropping data shrinks the step; with `kept` (verl) it does not",
    )

    @property
    def problem(self) -> str:
        """Why the values do not go together; empty if they do. Judged with the row's values in it."""
        if self.rule != "truncate" and self.low >= self.high:
            return f"low = {self.low:g} is not below high = {self.high:g}"
        if self.reject in ("geometric", "extreme") and self.reject_low >= self.reject_high:
            return f"reject_low = {self.reject_low:g} is not below reject_high = {self.reject_high:g}"
        if self.normalize and self.weight == "none":
            return "normalize = true divides weights by their mean, so it needs weight = 'token'"
        if self.denominator == "kept" and not self.drops:
            return (
                "denominator = 'kept' counts what a rule keeps, and nothing is dropped: set reject, veto or "
                "rule = 'mask' with a weight"
            )
        if self.off_policy_mask is not None and self.denominator == "kept":
            return "off_policy_mask follows the policy during the update, so denominator must be 'all'"
        return ""

    @property
    def masks_weights(self) -> bool:
        """True if the weight itself drops tokens or sequences."""
        return self.weight != "none" and self.rule == "mask"

    @property
    def drops(self) -> bool:
        """True if some tokens may be dropped by what is known before the update."""
        return self.reject != "none" or self.veto is not None or self.masks_weights

    @property
    def reads_proximal(self) -> bool:
        """True if the trainer's log-probs before the update are compared with the sampler's."""
        return self.weight != "none" or self.reject != "none" or self.veto is not None

    @property
    def reads_sampler(self) -> bool:
        """True if the sampler's log-probs are needed."""
        return self.reads_proximal or self.off_policy_mask is not None

    @property
    def before_update(self) -> bool:
        """True if every row must be scored before the first backward pass: something is counted over the step."""
        return self.normalize or self.denominator == "kept"

    @property
    def read(self) -> frozenset[str]:
        """Names of the fields that have an effect beside the others' values."""
        names = {"weight", "reject", "veto", "off_policy_mask"}
        if self.weight != "none":
            names |= {"rule", "high", "normalize"} | ({"low"} if self.rule != "truncate" else set())
        if self.reject != "none":
            names |= {"reject_high"} | ({"reject_low"} if self.reject != "k3" else set())
        if self.drops:
            names.add("denominator")
        return frozenset(names)

"""From rewards to advantages, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting

ESTIMATORS = ("pass_at_k", "second_best")
"""Baselines that give the whole advantage: nothing is left to scale."""


class Advantage(Section):
    """``[policy.advantage]``: from rewards to what multiplies each token."""

    baseline: Literal[
        "none", "group_mean", "leave_one_out", "length_weighted", "greedy", "critic", "pass_at_k", "second_best"
    ] = setting(
        "group_mean",
        "What is subtracted from a reward: nothing; the mean of its group; the mean of the group's other members; the "
        "group's mean weighted by trained tokens; the reward of a greedy attempt at the same task; `critic`: a learned "
        "value of every token (generalised advantages, `[policy.critic]`). `pass_at_k`: the "
        "advantage whose gradient is that of pass@k. `second_best`: only the group's best attempt counts, by its lead "
        "over the second.",
        reason="a group baseline needs no critic; leave_one_out is group_mean times G/(G-1) and unbiased",
        assumes="several attempts per task",
    )
    scale: Literal["none", "group_std", "batch_std", "group_reward_mean", "batch_whiten", "token_whiten"] = setting(
        "none",
        "What the centred reward is divided by: nothing, the std of its group, the std of the centred rewards "
        "of the whole batch (groups without spread included), or the mean reward of its group. `batch_whiten`: centred "
        "and divided by the std over the batch's sequences; `token_whiten`: the same over its trained tokens.",
        reason="the group std weighs nearly solved and nearly failed tasks up; rows that divide by it say so",
    )
    combine: Literal["sum", "parts"] = setting(
        "sum",
        "`sum`: the weighted reward is what baseline and scale see; `parts`: each reward function of the environment "
        "goes through baseline and group std by itself, and the results are summed by their weights.",
        reason="the reward is one number unless a row says otherwise",
    )
    k: int = setting(4, "The k of `pass_at_k`.", reason="small against the usual groups of 8 and 16", ge=1)
    std_ddof: Literal[0, 1] = setting(
        1,
        "Delta degrees of freedom of the std: 1 divides by n - 1, 0 by n.",
        reason="TRL and verl use 1; with small groups the choice changes the step size by sqrt(n/(n-1))",
    )
    std_epsilon: float = setting(
        1e-6,
        "Added to the std, or to the group's mean reward, before dividing; `token_whiten` adds it to the variance, "
        "under the root.",
        reason="verl's value (TRL: 1e-4); it never decides about equal rewards, those are compared exactly",
        ge=0.0,
    )

    @property
    def problem(self) -> str:
        """Why the values do not go together; empty if they do. Judged with the row's values in it."""
        if self.baseline == "none" and self.scale not in ("none", "token_whiten", "batch_whiten"):
            return f"scale = {self.scale!r} divides centred rewards, so it needs a baseline"
        if self.baseline in ESTIMATORS and self.scale != "none":
            return f"baseline = {self.baseline!r} is a whole advantage, so scale must be 'none'"
        if self.baseline == "critic" and self.scale not in ("none", "token_whiten"):
            return (
                f"baseline = 'critic' gives each token its own advantage, so scale = {self.scale!r} has no meaning: "
                "use 'token_whiten' or 'none'"
            )
        if self.combine == "parts" and (self.baseline != "group_mean" or self.scale not in ("none", "batch_whiten")):
            return (
                "combine = 'parts' divides each part by its own group std, so it needs baseline = 'group_mean' and "
                "scale = 'batch_whiten' or 'none'"
            )
        return ""

    @property
    def compares_attempts(self) -> bool:
        """True if several attempts at one task are compared with each other."""
        return self.baseline not in ("none", "greedy", "critic")

    @property
    def whitens(self) -> bool:
        """True if an attempt's advantage depends on the whole batch, so that equal rewards in a group may speak."""
        return self.scale in ("batch_whiten", "token_whiten")

    @property
    def read(self) -> frozenset[str]:
        """Names of the fields that have an effect beside the others' values."""
        names = {"baseline", "scale", "combine"}
        if self.baseline == "pass_at_k":
            names.add("k")
        if self.scale != "none" or self.combine == "parts":
            names.add("std_epsilon")
        if self.scale in ("group_std", "batch_std", "batch_whiten", "token_whiten") or self.combine == "parts":
            names.add("std_ddof")
        return frozenset(names)

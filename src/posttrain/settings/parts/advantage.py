"""From rewards to advantages, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting


class Advantage(Section):
    """``[policy.advantage]``: from rewards to what multiplies each token."""

    baseline: Literal["none", "group_mean", "leave_one_out"] = setting(
        "group_mean",
        "What is subtracted from a reward: nothing, the mean of its group, or the mean of the group's other members.",
        reason="a group baseline needs no critic; leave_one_out is group_mean times G/(G-1) and unbiased",
        assumes="several attempts per task",
    )
    scale: Literal["none", "group_std", "batch_std"] = setting(
        "none",
        "What the centred reward is divided by: nothing, the std of its group, or the std of the centred rewards "
        "of the whole batch (groups without spread included).",
        reason="the group std weighs nearly solved and nearly failed tasks up; rows that divide by it say so",
    )
    std_ddof: Literal[0, 1] = setting(
        1,
        "Delta degrees of freedom of the std: 1 divides by n - 1, 0 by n.",
        reason="TRL and verl use 1; with small groups the choice changes the step size by sqrt(n/(n-1))",
    )
    std_epsilon: float = setting(
        1e-6,
        "Added to the std before dividing.",
        reason="verl's value (TRL: 1e-4); it never decides about equal rewards, those are compared exactly",
        ge=0.0,
    )

    @model_validator(mode="after")
    def _scale_needs_baseline(self) -> Self:
        if self.baseline == "none" and self.scale != "none":
            raise ValueError(f"scale = {self.scale!r} divides centred rewards, so it needs a baseline")
        return self

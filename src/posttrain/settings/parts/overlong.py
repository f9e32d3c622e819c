"""Attempts near the generation budget, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class Overlong(Section):
    """``[policy.overlong]``: what happens to attempts near or at the generation budget L."""

    soft_penalty: bool = setting(
        False,
        "Add to the reward 0 up to L - buffer, then linearly down to -penalty_weight at L.",
        reason="a reward term of its own; only DAPO has it",
    )
    buffer_tokens: int | None = setting(
        None,
        "Length of the slope before L. Absent: a fifth of L, as in the paper (4096 of 20480).",
        reason="the paper's proportion carries over to other budgets, its number does not",
        ge=1,
    )
    penalty_weight: float = setting(1.0, "Penalty at L.", reason="the paper's; rewards there are +1 and -1", gt=0.0)
    filter: Literal["off", "loss", "loss_and_baseline"] = setting(
        "off",
        "Attempts cut at the budget: trained as they are; masked from the loss; or masked and also left out of their "
        "group's baseline.",
        reason="a variant in the paper that its best reported run did not use; masking hides a growing length",
    )

"""Supervised losses, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class Supervised(Section):
    """``[policy.supervised]``: from the log-probs of given tokens to a loss."""

    aggregation: Literal["token_mean", "sequence_mean"] = setting(
        "token_mean",
        "`token_mean`: minus the sum of log-probs / trained tokens of the step. `sequence_mean`: the mean over rows of "
        "their token means.",
        reason="every token counts alike, however the step is cut into micro-batches",
    )


class RewardModelling(Section):
    """``[policy.reward_model]``: from the rewards of chosen and rejected answers to a loss."""

    center_weight: float = setting(
        0.0,
        "Weight of the mean squared sum of both rewards, which keeps rewards near 0.",
        reason="only differences are trained, so the level is free; 0.01 is usual where the level matters",
        ge=0.0,
    )

"""From token losses to one number, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class Aggregation(Section):
    """``[policy.aggregation]``: from token losses to one number, with denominators of the whole step."""

    kind: Literal["token_mean", "sequence_mean", "sequence_sum", "constant_length", "prompt_average"] = setting(
        "token_mean",
        "`token_mean`: sum / trained tokens. `sequence_mean`: mean over sequences of their token means. "
        "`sequence_sum`: mean over sequences of their token sums. `constant_length`: the same / `length`. "
        "`prompt_average`: mean over groups of (sum over the group / its tokens).",
        reason="every token counts alike; the default of verl, TRL, prime-rl and OpenRLHF",
    )
    length: int | None = setting(
        None,
        "The constant of `constant_length`, in tokens. Absent: the generation budget.",
        reason="a constant of the run, never the longest row of a batch: the loss scale must not depend on a batch",
        ge=1,
    )

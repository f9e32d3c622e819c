"""Importance ratios, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting

LOG_RATIO_CLAMP = 20.0
"""Bound on |log ratio| before ``exp``: e^20 is finite in every dtype used; a clamped token has no gradient."""

SEQUENCE_LEVELS = ("sequence", "sequence_token", "product")
"""Levels at which all tokens of a sequence have one ratio."""


class Ratio(Section):
    """``[policy.ratio]``: how much more likely the policy makes a token than the policy it is compared with."""

    level: Literal["none", "token", "sequence", "sequence_token", "product"] = setting(
        "token",
        "`none`: the score-function surrogate -A log pi; `token`: exp(log pi - log denominator) per token; `sequence`: "
        "the geometric mean over a sequence's trained tokens, for each of them; `sequence_token`: the same value, with "
        "each token's own gradient; `product`: the product over the sequence.",
        reason="a ratio keeps the surrogate right when a batch is used for several updates",
    )
    denominator: Literal["proximal", "sampler"] = setting(
        "proximal",
        "`proximal`: the trainer's own log-probs before the batch's first update; `sampler`: the engine's. With "
        "`sampler` the ratio also corrects the sampler/trainer mismatch and nothing else may correct it again.",
        reason="the clip then measures only what the optimizer did, not numerical noise of the engine",
        assumes="synchronous: sampler and trainer hold the same weights",
    )

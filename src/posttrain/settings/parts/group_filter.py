"""Which groups are trained, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class GroupFilter(Section):
    """``[policy.group_filter]``: which groups are worth training (dynamic sampling)."""

    rule: Literal["none", "mixed_success"] = setting(
        "none",
        "`mixed_success`: keep a group only if some of its attempts succeed and some fail, judged by the success "
        "threshold and never by the shaped reward. A group is kept or dropped whole.",
        reason="costs extra rollouts; without shaping terms equal rewards already give advantage 0",
    )
    max_refills: int = setting(
        0,
        "How many more times groups are drawn to replace dropped ones; then the step runs with those there are.",
        reason="0 drops without replacement; a cap keeps a step from sampling for ever when nothing is mixed",
        ge=0,
    )

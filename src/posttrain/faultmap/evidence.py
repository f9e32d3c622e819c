"""Observations beside a finding's own signal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from posttrain.faultmap.finding import Observation
from posttrain.faultmap.history import History


def observed_at(history: History, step: int, shows: Mapping[str, str]) -> tuple[Observation, ...]:
    """What was logged at ``step`` of the signals in ``shows``, which says what each shows; finite values only."""
    values = ((name, history.course(name).at(step)) for name in shows)
    return tuple(Observation(name, step, v, shows[name]) for name, v in values if v is not None and math.isfinite(v))

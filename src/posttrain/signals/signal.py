"""What a measured quantity is: its meaning, how values of it combine, and what is known about healthy ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Layer(IntEnum):
    """The six layers of diagnosis, in the order in which to look."""

    REWARD = 1
    POLICY = 2
    LOGPROBS = 3
    ROLLOUT = 4
    PARALLEL = 5
    SCHEDULE = 6


class Reduction(StrEnum):
    """How several values of one signal become one.

    ``mean`` and ``share`` are weighted by their counts, so that no mean of means arises; ``share`` is a
    mean of yes/no facts and lies in [0, 1]. ``last`` marks a quantity that is computed once over the
    whole step (quantiles, standard deviations): parts of it cannot be combined, the newest counts.
    """

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"
    SHARE = "share"


class Evidence(StrEnum):
    """How well a healthy range is founded."""

    DERIVED = "derived"
    """Follows from the definition."""
    MEASURED = "measured"
    """Seen in published or own runs, with and without the failure."""
    PROPOSED = "proposed"
    """A rule of thumb; it informs, and needs a second symptom to mean anything."""


@dataclass(frozen=True, slots=True)
class HealthyRange:
    """Where values usually lie in a run that works. ``None`` means no bound on that side.

    Outside of what ``assumes`` states the range says nothing.
    """

    low: float | None
    high: float | None
    source: str
    evidence: Evidence
    assumes: str

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a healthy range needs at least one bound")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"a healthy range needs low <= high, got {self.low} > {self.high}")

    def contains(self, value: float) -> bool:
        """True if a value lies in the range. NaN never does."""
        return (
            not math.isnan(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )


@dataclass(frozen=True, slots=True)
class Signal:
    """One measured quantity.

    ``name`` may hold parameters in braces (``reward/part/{part}/mean``). ``definition`` says what is
    counted over what; ``assumes`` when the number means what it says. A signal that is not ``written`` is never in
    a run directory of posttrain: only other frameworks log it, or a reader derives it.
    """

    name: str
    layer: Layer
    unit: str
    definition: str
    reduction: Reduction
    healthy: HealthyRange | None = None
    assumes: str = ""
    written: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """A value of one signal. ``count`` is how many observations it summarises (the weight of a mean)."""

    name: str
    value: float
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.name}: a count must be >= 0, got {self.count}")


def combine(parts: Iterable[Measured], reduction: Reduction) -> Measured:
    """Combine values of one signal by its reduction.

    Parts with count 0 say nothing and are left out; if all are, the result is NaN with count 0. A NaN
    part makes the result NaN: a broken part is never averaged away. Raises ValueError on no parts or on
    parts of different signals.
    """
    everything = list(parts)
    if not everything:
        raise ValueError("nothing to combine")
    name = everything[0].name
    if any(part.name != name for part in everything):
        raise ValueError(f"cannot combine different signals: {sorted({part.name for part in everything})}")
    observed = [part for part in everything if part.count]
    count = sum(part.count for part in observed)
    if not observed:
        return Measured(name, math.nan, 0)
    if any(math.isnan(part.value) for part in observed):
        return Measured(name, math.nan, count)
    match reduction:
        case Reduction.MEAN | Reduction.SHARE:
            value = math.fsum(part.value * part.count for part in observed) / count
        case Reduction.SUM:
            value = math.fsum(part.value for part in observed)
        case Reduction.MAX:
            value = max(part.value for part in observed)
        case Reduction.MIN:
            value = min(part.value for part in observed)
        case Reduction.LAST:
            return observed[-1]
    return Measured(name, value, count)

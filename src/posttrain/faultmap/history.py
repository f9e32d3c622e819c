"""What detectors see of a run: courses of signals, facts of its settings, and samples. The same for every framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from posttrain.signals.framework import Framework

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """One signal over a run. ``steps`` (int64, [n]) ascend strictly; ``values`` (float64, [n]) in the signal's unit.

    A value that was logged but is not finite stays NaN or infinite; a step at which nothing was logged is absent.
    """

    name: str
    steps: Steps
    values: Values

    def __post_init__(self) -> None:
        if self.steps.shape != self.values.shape or self.steps.ndim != 1:
            raise ValueError(f"{self.name}: {self.steps.shape} steps and {self.values.shape} values do not match")
        if len(self.steps) > 1 and not bool(np.all(np.diff(self.steps) > 0)):
            raise ValueError(f"{self.name}: steps must ascend strictly")

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def finite(self) -> Course:
        """The points whose value is finite."""
        keep = np.isfinite(self.values)
        return self if bool(keep.all()) else Course(self.name, self.steps[keep], self.values[keep])

    def between(self, first: int, last: int) -> Course:
        """The points with ``first <= step <= last``."""
        low, high = np.searchsorted(self.steps, [first, last + 1])
        return Course(self.name, self.steps[low:high], self.values[low:high])

    def at(self, step: int) -> float | None:
        """Value at a step, or ``None`` where nothing was logged."""
        index = int(np.searchsorted(self.steps, step))
        found = index < len(self.steps) and self.steps[index] == step
        return float(self.values[index]) if found else None

    def on(self, steps: Steps) -> Values:
        """The newest value at or before each of ``steps``; NaN before the first point."""
        index = np.searchsorted(self.steps, steps, side="right") - 1
        values = self.values[np.maximum(index, 0)] if len(self) else np.full(len(steps), np.nan)
        return np.where(index >= 0, values, np.nan)


EMPTY_STEPS: Steps = np.array([], np.int64)
EMPTY_VALUES: Values = np.array([], np.float64)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the settings of a run; ``None`` where the log does not say.

    ``anchor_weight`` is the coefficient of the KL to a reference (0: no anchor); ``updates_per_batch`` the
    optimizer steps on one rollout batch; ``corrected`` whether sampler/trainer differences are weighted.
    """

    algorithm: str | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    planned_steps: int | None = None
    group_size: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    anchor_weight: float | None = None
    updates_per_batch: int | None = None
    corrected: bool | None = None
    verifiable: bool | None = None
    mixture_of_experts: bool | None = None
    asynchronous: bool | None = None
    staleness_limit: int | None = None
    compute_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory as text, as far as the log has it. ``tokens`` counts sampled tokens."""

    step: int
    prompt: str
    completion: str
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    group_id: str | None = None
    finish_reason: str | None = None
    tokens: int | None = None


class Samples(Protocol):
    """Trajectories of a run, read when asked for."""

    def steps(self) -> Sequence[int]:
        """Training steps that have samples, ascending."""
        ...

    def read(self, step: int) -> Sequence[Sample]:
        """Samples of a step. Empty where they cannot be read; the reader notes the problem."""
        ...


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A key of a log that stands for no signal known here."""

    key: str
    points: int


@dataclass(frozen=True, slots=True)
class History:
    """A run as detectors see it.

    ``problems`` are sentences about what could not be read; ``notes`` say how the log was understood (which
    format, which keys were combined, which caveats of a key matter).
    """

    framework: Framework
    source: str
    courses: Mapping[str, Course]
    facts: Facts = Facts()
    samples: Samples | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unmapped: tuple[Unmapped, ...] = ()

    def course(self, name: str) -> Course:
        """The course of a signal; an empty one where the log does not have it."""
        return self.courses.get(name) or Course(name, EMPTY_STEPS, EMPTY_VALUES)

    def has(self, name: str) -> bool:
        """True if the log has at least one finite value of the signal."""
        course = self.courses.get(name)
        return course is not None and bool(np.isfinite(course.values).any())

    def matching(self, prefix: str) -> list[Course]:
        """Courses whose name starts with ``prefix``, by name."""
        return [self.courses[name] for name in sorted(self.courses) if name.startswith(prefix)]

    @property
    def steps(self) -> Steps:
        """Every step of which anything was logged, ascending."""
        if not self.courses:
            return EMPTY_STEPS
        return np.unique(np.concatenate([course.steps for course in self.courses.values()]))

    def until(self, step: int) -> History:
        """The run as it was known at a step."""
        cut = {name: course.between(-1, step) for name, course in self.courses.items()}
        return History(
            self.framework,
            self.source,
            MappingProxyType({name: course for name, course in cut.items() if len(course)}),
            self.facts,
            self.samples,
            self.problems,
            self.notes,
            self.unmapped,
        )

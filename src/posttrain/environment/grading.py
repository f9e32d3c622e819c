"""What every grader returns and counts, and the environment made of tasks plus a grader."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from posttrain.environment.protocol import Attempt, RewardKind, TaskSplit
from posttrain.errors import InputError
from posttrain.trajectory import Grade, GradeStatus

LARGEST_REWARD = 1e30
"""Larger ones overflow: advantages are float32, and the variance of a batch squares them."""


@dataclass(slots=True)
class GradingCounts:
    """Running totals of one grader since it was built.

    ``timeouts`` counts attempts that ran out of time alone, ``restarts`` grading processes started anew.
    """

    graded: int = 0
    ungradable: int = 0
    failed: int = 0
    timeouts: int = 0
    restarts: int = 0

    def add(self, grades: Sequence[Grade]) -> None:
        """Count the grades of one batch."""
        for grade in grades:
            if grade.status is GradeStatus.GRADED:
                self.graded += 1
            elif grade.status is GradeStatus.UNGRADABLE:
                self.ungradable += 1
            else:
                self.failed += 1


class Grader(Protocol):
    """Judges attempts. ``grade`` never raises for a bad attempt."""

    counts: GradingCounts

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        ...

    def extract(self, completion: str) -> str | None:
        """The answer of a completion in one spelling per value, for majority votes; ``None`` if there is none."""
        ...

    def close(self) -> None:
        """Stop worker processes, if any."""
        ...


class PureGrader:
    """A grader made of pure functions: fast, cannot hang, needs no process."""

    def __init__(self, grade_one: Callable[[Attempt], Grade], extract: Callable[[str], str | None]) -> None:
        self.counts = GradingCounts()
        self._grade_one, self._extract = grade_one, extract

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        grades = [self._grade_one(attempt) for attempt in attempts]
        self.counts.add(grades)
        return grades

    def extract(self, completion: str) -> str | None:
        """The answer of a completion in one spelling per value."""
        return self._extract(completion)

    def close(self) -> None:
        """Nothing to stop."""


@dataclass(slots=True)
class GradedTasks:
    """An environment: a fixed split of tasks and a grader. ``part_weights``: what each named part of a reward counts,
    empty where a reward is no sum of parts."""

    name: str
    split: TaskSplit
    grader: Grader
    reward_kind: RewardKind = RewardKind.VERIFIABLE
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    success_threshold: float = 1.0
    part_weights: Mapping[str, float] = field(default_factory=dict)
    counts: GradingCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self.grader.counts

    def tasks(self) -> TaskSplit:
        """All tasks, in a fixed order."""
        return self.split

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        return self.grader.grade(attempts)

    def extract(self, completion: str) -> str | None:
        """The answer of a completion in one spelling per value, for majority votes."""
        return self.grader.extract(completion)

    def close(self) -> None:
        """Stop worker processes, if any."""
        self.grader.close()


def graded(reward: float, parts: Mapping[str, float | None], reason: str = "") -> Grade:
    """A grade with a reward; one that is not finite or beyond ``LARGEST_REWARD`` becomes ``ungradable`` instead."""
    if not abs(reward) <= LARGEST_REWARD:
        return ungradable(f"the grader returned {reward}", parts)
    return Grade(GradeStatus.GRADED, float(reward), parts, reason)


def ungradable(reason: str, parts: Mapping[str, float | None] | None = None) -> Grade:
    """The attempt cannot be judged; it carries no reward."""
    return Grade(GradeStatus.UNGRADABLE, None, _finite_parts(parts), reason)


def failed(reason: str, parts: Mapping[str, float | None] | None = None) -> Grade:
    """The grader broke on the attempt (exception, timeout, lost process); it carries no reward."""
    return Grade(GradeStatus.FAILED, None, _finite_parts(parts), reason)


def finite_number(value: object) -> float | None:
    """What a user's code returned as a number, or ``None`` if it is none, NaN, infinite or too large."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST_REWARD else None


def _finite_parts(parts: Mapping[str, float | None] | None) -> dict[str, float | None]:
    return {name: v if v is not None and math.isfinite(v) else None for name, v in (parts or {}).items()}


def check_split(name: str, split: TaskSplit) -> TaskSplit:
    """The split itself. Raises InputError if it has no training task or an id twice."""
    if not split.train:
        raise InputError(
            f"environments.{name}", "no tasks", "there is nothing to train on", "Add tasks or hold out fewer."
        )
    seen: set[str] = set()
    for task in (*split.train, *split.evaluation):
        if task.task_id in seen:
            raise InputError(
                f"environments.{name}", task.task_id, "two tasks have this id", "Give every task its own id."
            )
        seen.add(task.task_id)
    return split

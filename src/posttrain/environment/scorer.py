"""A trained reward model as grader. The model itself is given from above: no torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from posttrain.environment.grading import GradingCounts, graded, ungradable
from posttrain.environment.protocol import Attempt
from posttrain.trajectory import Grade, Message


class Scorer(Protocol):
    """Gives each answer a number."""

    def score(self, conversations: Sequence[tuple[tuple[Message, ...], str]]) -> list[float | str]:
        """For each prompt and answer, in order, its reward, or in words why there is none."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


Scorers = Callable[[str, str], Scorer]
"""Loads a reward model: from the setting that names it (for errors) and its folder."""


class ModelGrader:
    """Reward = what the model says of the prompt with the answer after it.

    An answer the model cannot read (too long for its context) or says no finite number about is ungradable.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.counts = GradingCounts()
        self._scorer = scorer

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        values = self._scorer.score([(a.task.messages, a.completion) for a in attempts])
        grades = [_grade(value) for value in values]
        self.counts.add(grades)
        return grades

    def extract(self, completion: str) -> str | None:
        """Always ``None``: a reward model does not say what the answer is, so nothing can be voted on."""
        return None

    def close(self) -> None:
        """Free the model."""
        self._scorer.close()


def _grade(value: float | str) -> Grade:
    if isinstance(value, str):
        return ungradable(value)
    return graded(value, {}) if math.isfinite(value) else ungradable(f"the reward model says {value}")

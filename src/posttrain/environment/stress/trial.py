"""Sends texts to a grader and keeps what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.environment.grading import GradedTasks
from posttrain.environment.protocol import Attempt
from posttrain.trajectory import FinishReason, Grade, GradeStatus, Message, Task


@dataclass(frozen=True, slots=True)
class Answered:
    """What a grader said to one text. ``timed_out``: it did not answer in time."""

    status: GradeStatus
    reward: float | None
    reason: str
    timed_out: bool = False


class Trial:
    """Grades texts, each once per task. A text that costs a process or a time limit is not tried on further tasks."""

    def __init__(self, environment: GradedTasks) -> None:
        self._environment = environment
        self._known: dict[tuple[str, str], Answered] = {}

    @property
    def threshold(self) -> float:
        """Reward from which an attempt counts as a success."""
        return self._environment.success_threshold

    @property
    def num_graded(self) -> int:
        """Different texts graded so far."""
        return len(self._known)

    def grade(self, asked: Sequence[tuple[Task, str]]) -> list[Answered | None]:
        """One answer per task and text, in order; ``None`` where an earlier one of these cost its process.

        The first text goes alone, so that one which hangs costs one time limit and not one per task.
        """
        new = [pair for pair in asked if (pair[0].task_id, pair[1]) not in self._known]
        for part in (new[:1], new[1:]):
            if part and not self._send(part):
                break
        return [self._known.get((task.task_id, text)) for task, text in asked]

    def _send(self, asked: Sequence[tuple[Task, str]]) -> bool:
        """Grade; False if that cost a process or a time limit."""
        counts = self._environment.counts
        timeouts, restarts = counts.timeouts, counts.restarts
        grades = self._environment.grade([_attempt(task, text) for task, text in asked])
        alone = len(asked) == 1 and counts.timeouts > timeouts
        for (task, text), grade in zip(asked, grades, strict=True):
            self._known[task.task_id, text] = _answered(grade, alone)
        return counts.timeouts == timeouts and counts.restarts == restarts


def _attempt(task: Task, text: str) -> Attempt:
    messages = (*task.messages, Message("assistant", text))
    return Attempt(task, text, messages, FinishReason.STOP, max(1, len(text) // 4))


def _answered(grade: Grade, timed_out: bool) -> Answered:
    return Answered(grade.status, grade.reward, grade.reason, timed_out or "timeout" in grade.reason)

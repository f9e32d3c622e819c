"""What an environment is: tasks to solve, and a judgement of each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from posttrain.trajectory import FinishReason, Grade, Message, Task


class RewardKind(StrEnum):
    """Whether the reward checks a fact or expresses a preference; it decides the default anchor."""

    VERIFIABLE = "verifiable"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a grader sees of one trajectory.

    ``completion`` is the text the *policy* wrote (tool and environment text is not in it);
    ``messages`` is the whole conversation including it.
    """

    task: Task
    completion: str
    messages: tuple[Message, ...]
    finish_reason: FinishReason
    num_tokens: int
    trajectory_id: str = ""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Tasks to train on and tasks never trained on; ids are unique over both."""

    train: Sequence[Task]
    evaluation: Sequence[Task] = field(default_factory=tuple)


@runtime_checkable
class Environment(Protocol):
    """A source of tasks with a reward. Implementations import no torch."""

    name: str
    reward_kind: RewardKind
    reward_range: tuple[float, float] | None
    success_threshold: float
    """A graded reward at or above it counts as a success in pass@k and difficulty bins."""

    def tasks(self) -> TaskSplit:
        """All tasks, in a fixed order. Raises InputError on an empty or contradictory source."""
        ...

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order. Never raises for a bad attempt: that is ``ungradable`` or ``failed``."""
        ...

    def close(self) -> None:
        """Stop worker processes, if any."""
        ...

"""Environments to stress: a few golds of every kind, and any reward function, without a process."""

from collections.abc import Callable, Sequence
from typing import Any

import rewards_to_stress

from posttrain.environment.grading import GradedTasks, PureGrader, graded
from posttrain.environment.protocol import Attempt, RewardKind, TaskSplit
from posttrain.environment.stress.findings import works
from posttrain.environment.stress.result import StressResult
from posttrain.environment.stress.stress import stress
from posttrain.settings.environments import FunctionSettings
from posttrain.trajectory import Grade, Message, Task

MIXED = (
    "42",
    "1000",
    "1,000",
    "0.5",
    "0.001",
    "-5",
    "0",
    "1/2",
    "1/3",
    "3/2",
    "2*sqrt(3)",
    r"\sqrt{2}",
    r"2\pi",
    "yes",
    "C",
    "(1,2)",
    "{1,2,3}",
    "the derivative",
    "5 meters",
    r"50\%",
    r"\boxed{5}",
    "3.14159",
    "Mercury",
)
NUMBERS = ("42", "17", "-5", "1000", "0.5", "230")
SECTION = FunctionSettings(kind="function", path="unused", reward="unused:unused", reward_kind="verifiable")

Reward = Callable[..., list[Any]]


def tasks_of(golds: Sequence[Any], prompt: str = "Question {}?", **metadata: Any) -> tuple[Task, ...]:
    """One task for each gold; ``{}`` in the prompt is a letter that tells them apart."""
    return tuple(
        Task(f"t{i}", (Message("user", prompt.format("abcdefghijklmnopqrstuvwxyz"[i])),), gold, "e", metadata)
        for i, gold in enumerate(golds)
    )


def environment_of(reward: Reward, tasks: Sequence[Task]) -> GradedTasks:
    """The reward function as an environment, called in this process."""

    def grade(attempt: Attempt) -> Grade:
        (value,) = reward([attempt.completion], gold=[attempt.task.gold], prompts=[attempt.task.messages[-1].content])
        return graded(value, {})

    return GradedTasks("e", TaskSplit(tasks), PureGrader(grade, lambda text: text), RewardKind.VERIFIABLE)


def stressed(name: str, golds: Sequence[Any] = MIXED, prompt: str = "Question {}?") -> StressResult:
    """The result for a function of ``rewards_to_stress``."""
    tasks = tasks_of(golds, prompt)
    return stress(environment_of(getattr(rewards_to_stress, name), tasks), SECTION, len(tasks))


def families(result: StressResult) -> set[str]:
    """Families of attacks that work."""
    return {attack.family for attack in result.attacks if works(attack, result)}


def refused(result: StressResult) -> set[str]:
    """Names of spellings that are refused at least once."""
    return {s.name for s in result.spellings if s.tally.paid < s.tally.judged}

"""From a settings section to an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.environment.grading import GradedTasks
from posttrain.environment.protocol import TaskSplit
from posttrain.errors import InputError
from posttrain.settings.environments import (
    ArithmeticSettings,
    EnvironmentSettings,
)
from posttrain.trajectory import Message, Task


def build_environments(sections: Mapping[str, EnvironmentSettings]) -> list[GradedTasks]:
    """All environments of the settings, in their order. Closes those already built if one cannot be."""
    built: list[GradedTasks] = []
    try:
        for name, section in sections.items():
            built.append(build_environment(name, section))
    except BaseException:
        for environment in built:
            environment.close()
        raise
    return built


def build_environment(name: str, section: EnvironmentSettings) -> GradedTasks:
    """One environment. Raises InputError on anything it cannot be built from."""
    environment = _build(name, section)
    environment.success_threshold = section.success_threshold
    if section.system_prompt is not None:
        environment.split = _with_system_prompt(environment.split, section.system_prompt)
    return environment


def _build(name: str, section: EnvironmentSettings) -> GradedTasks:
    if isinstance(section, ArithmeticSettings):
        return _arithmetic(name, section)
    raise InputError(f"environments.{name}.kind", section.kind, "is not supported", "Use arithmetic.")


def _arithmetic(name: str, section: ArithmeticSettings) -> GradedTasks:
    return arithmetic_environment(
        name,
        section.mixture if section.task == "mixture" else (section.task,),
        held_out_pairs=section.held_out_pairs,
        held_out_seed=section.held_out_seed,
        low=None if section.low == "auto" else section.low,
        high=None if section.high == "auto" else section.high,
        prompt=section.prompt,
        grading=section.grading,
    )


def _with_system_prompt(split: TaskSplit, prompt: str) -> TaskSplit:
    """Put a system message before tasks that do not start with one of their own."""

    def prefixed(tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(
            t if t.messages[0].role == "system" else replace(t, messages=(Message("system", prompt), *t.messages))
            for t in tasks
        )

    return TaskSplit(prefixed(split.train), prefixed(split.evaluation))

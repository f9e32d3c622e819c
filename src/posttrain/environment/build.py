"""From a settings section to an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.environment.function import FunctionGrader, RewardFunction
from posttrain.environment.grading import GradedTasks
from posttrain.environment.protocol import RewardKind, TaskSplit
from posttrain.environment.reasoning_gym import reasoning_gym_environment
from posttrain.environment.rows import RowFormat, load_split
from posttrain.environment.scorer import ModelGrader, Scorers
from posttrain.environment.verifiers import verifier
from posttrain.errors import InputError
from posttrain.settings.environments import (
    ArithmeticSettings,
    EnvironmentSettings,
    FunctionSettings,
    ReasoningGymSettings,
    RewardModelSettings,
    RowsSettings,
)
from posttrain.trajectory import Message, Task


def build_environments(
    sections: Mapping[str, EnvironmentSettings], scorers: Scorers | None = None
) -> list[GradedTasks]:
    """All environments of the settings, in their order. Closes those already built if one cannot be.

    ``scorers`` loads reward models, where the caller can.
    """
    built: list[GradedTasks] = []
    try:
        for name, section in sections.items():
            built.append(build_environment(name, section, scorers))
    except BaseException:
        for environment in built:
            environment.close()
        raise
    return built


def build_environment(name: str, section: EnvironmentSettings, scorers: Scorers | None = None) -> GradedTasks:
    """One environment. Raises InputError on anything it cannot be built from."""
    environment = _build(name, section, scorers)
    environment.success_threshold = section.success_threshold
    if section.system_prompt is not None:
        environment.split = _with_system_prompt(environment.split, section.system_prompt)
    return environment


def _build(name: str, section: EnvironmentSettings, scorers: Scorers | None) -> GradedTasks:
    match section:
        case ArithmeticSettings():
            return _arithmetic(name, section)
        case ReasoningGymSettings():
            return _reasoning_gym(name, section)
        case RowsSettings():
            return _rows(name, section)
        case FunctionSettings():
            return _function(name, section)
        case RewardModelSettings():
            return _reward_model(name, section, scorers)


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


def _reasoning_gym(name: str, section: ReasoningGymSettings) -> GradedTasks:
    return reasoning_gym_environment(
        name,
        section.dataset,
        size=section.size,
        evaluation_size=section.evaluation_size,
        seed=section.seed,
        parameters=section.parameters,
        extract=section.extract,
    )


def _rows(name: str, section: RowsSettings) -> GradedTasks:
    if section.gold_column is None:
        raise InputError(
            f"environments.{name}.gold_column",
            None,
            "a verifier needs gold answers",
            "Name the column, or use kind = 'function' with a reward function.",
        )
    split = _load(name, section)
    grader = verifier(f"environments.{name}.verifier", section.verifier, section.timeout_s, split.train)
    return GradedTasks(name, split, grader)


def _function(name: str, section: FunctionSettings) -> GradedTasks:
    targets = (section.reward,) if isinstance(section.reward, str) else section.reward
    weights = section.reward_weights or (1.0,) * len(targets)
    if len(weights) != len(targets):
        raise InputError(
            f"environments.{name}.reward_weights",
            list(weights),
            f"holds {len(weights)} weights for {len(targets)} functions",
            "Give one weight per function.",
        )
    split = _load(name, section)
    functions = [RewardFunction(target, weight) for target, weight in zip(targets, weights, strict=True)]
    grader = FunctionGrader(name, functions, split.train, section.completions, section.timeout_s, section.workers)
    parts = grader.part_weights if len(functions) > 1 else {}
    kind = RewardKind(section.reward_kind)
    return GradedTasks(name, split, grader, kind, reward_range=None, part_weights=parts)


def _reward_model(name: str, section: RewardModelSettings, scorers: Scorers | None) -> GradedTasks:
    setting = f"environments.{name}.reward_model"
    if scorers is None:
        problem = "is a model, and what was asked for runs without models"
        raise InputError(setting, section.reward_model, problem, "Train with it, and look at its samples.")
    split = _load(name, section)
    grader = ModelGrader(scorers(setting, section.reward_model))
    return GradedTasks(name, split, grader, RewardKind.SOFT, reward_range=None)


def _load(name: str, section: RowsSettings | FunctionSettings | RewardModelSettings) -> TaskSplit:
    return load_split(
        name,
        section.path,
        RowFormat(section.prompt_column, section.gold_column, section.id_column),
        evaluation_path=section.evaluation_path,
        evaluation_fraction=section.evaluation_fraction,
        split_seed=section.split_seed,
    )


def _with_system_prompt(split: TaskSplit, prompt: str) -> TaskSplit:
    """Put a system message before tasks that do not start with one of their own."""

    def prefixed(tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(
            t if t.messages[0].role == "system" else replace(t, messages=(Message("system", prompt), *t.messages))
            for t in tasks
        )

    return TaskSplit(prefixed(split.train), prefixed(split.evaluation))

"""What one finished run of an ablation measured, read from its run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.errors import InputError
from posttrain.orchestration.ablation.plan import Job
from posttrain.orchestration.evaluation import EvaluationSet, collect
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.reading import load_run
from posttrain.rundir.trajectories import read_trajectories
from posttrain.settings import Settings

LAST_SHARE = 0.1
"""Share of the steps, the last ones, that the final training reward is the mean of; one step at least."""


class State(StrEnum):
    """How far a run is. ``stopped``: a detector ended it; ``failed``: its process ended otherwise."""

    PENDING = "pending"
    UNFINISHED = "unfinished"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One held-out task: mean reward of its gradable attempts and the share of them that succeeded."""

    cluster: str
    reward: float
    success: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run measured.

    ``tasks`` by ``environment/task`` are the held-out tasks that could be graded after training. ``training_reward``
    is the mean over the last tenth of the steps, NaN where nothing was graded. ``seconds`` are those of the steps
    that count; loading and evaluation are not in them.
    """

    tasks: Mapping[str, TaskScore]
    training_reward: float
    steps: int
    seconds: float

    @property
    def reward(self) -> float:
        """Mean held-out reward, every task weighing the same; NaN without a task."""
        return _mean([t.reward for t in self.tasks.values()])

    @property
    def success(self) -> float:
        """Mean held-out success of one attempt (pass@1), every task weighing the same; NaN without a task."""
        return _mean([t.success for t in self.tasks.values()])

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form, with the means of each environment."""
        by_environment: dict[str, list[TaskScore]] = {}
        for key, task in self.tasks.items():
            by_environment.setdefault(key.partition("/")[0], []).append(task)
        return {
            "held_out_reward": self.reward,
            "held_out_success": self.success,
            "held_out_tasks": len(self.tasks),
            "training_reward": self.training_reward,
            "steps": self.steps,
            "seconds": self.seconds,
            "environments": {
                name: {
                    "reward": _mean([t.reward for t in found]),
                    "success": _mean([t.success for t in found]),
                    "tasks": len(found),
                }
                for name, found in sorted(by_environment.items())
            },
        }


def state_of(path: Path) -> State:
    """How far the run in a directory is: pending, unfinished, or finished with its last process's own word for it."""
    if not (path / "run.json").is_file():
        return State.PENDING
    attempts = RunDirectory.open(path).info().attempts
    return State.FINISHED if attempts and attempts[-1].outcome == "finished" else State.UNFINISHED


def check_same_settings(job: Job) -> None:
    """Raise InputError if the directory holds a run of other settings than the plan's: it would be no pair."""
    if state_of(job.path) is State.PENDING:
        return
    stored = RunDirectory.open(job.path).info().settings
    wanted = job.arm.seeded(job.seed)
    for section in wanted:
        if stored.get(section) != wanted[section]:
            name, was, now = _first_difference(section, stored.get(section), wanted[section])
            problem = f"{job.path} was run with {was!r}"
            raise InputError(name, now, problem, "Give the settings it was begun with, or another --out.")


def read_outcome(job: Job) -> Outcome:
    """Read a finished run. Raises DamagedFileError where one of its files cannot be read."""
    settings, loaded = job.arm.settings, load_run(job.path)
    _, rewards = loaded.metrics.series("reward/mean")
    _, seconds = loaded.metrics.series("time/step")
    last = rewards[-max(1, math.ceil(LAST_SHARE * settings.run.steps)) :]
    graded = last[np.isfinite(last)]
    return Outcome(
        tasks=_scores(RunDirectory.open(job.path), settings),
        training_reward=float(graded.mean()) if graded.size else math.nan,
        steps=settings.run.steps,
        seconds=float(seconds.sum()),
    )


def _scores(run: RunDirectory, settings: Settings) -> dict[str, TaskScore]:
    scores: dict[str, TaskScore] = {}
    for name, environment in settings.environments.items():
        path = run.evaluation_path(settings.run.steps, name)
        if not path.is_file():
            continue  # an environment that holds no task out
        found: EvaluationSet = collect(name, read_trajectories(path), success_threshold=environment.success_threshold)
        for task in found.judged:
            scores[f"{name}/{task.task_id}"] = TaskScore(
                f"{name}/{task.cluster}", task.mean_reward, task.successes / task.attempts
            )
    return scores


def _first_difference(name: str, stored: Any, wanted: Any) -> tuple[str, Any, Any]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*stored, *wanted}):
            if stored.get(key) != wanted.get(key):
                return _first_difference(f"{name}.{key}", stored.get(key), wanted.get(key))
    return name, stored, wanted


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan

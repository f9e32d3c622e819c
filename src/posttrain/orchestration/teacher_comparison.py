"""Teacher against student on held-out tasks, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.errors import InputError
from posttrain.model.weights import WeightSet
from posttrain.orchestration.held_out import held_out_tasks
from posttrain.orchestration.sampling import grade, members_of, sample
from posttrain.orchestration.statistics import Estimate, bootstrap_mean
from posttrain.orchestration.teacher import TaughtBy
from posttrain.orchestration.workbench import Workbench, build_engine
from posttrain.rollout.protocol import Engine
from posttrain.rollout.turns import Turns
from posttrain.trajectory import Role, SamplingParams, Task


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean reward over the held-out tasks of one environment. ``lead`` is the teacher's, paired by task, with its
    interval; all are absent if no task was graded on both sides."""

    environment: str
    tasks: int
    student: float
    teacher: float
    lead: Estimate | None

    def __str__(self) -> str:
        if self.lead is None:
            return f"{self.environment}: no held-out task could be graded for both teacher and student"
        return (
            f"{self.environment}: held-out reward {self.teacher:.3f} for the teacher, {self.student:.3f} for the "
            f"student, lead {self.lead.value:+.3f} ({self.lead.low:+.3f} to {self.lead.high:+.3f}), {self.tasks} tasks"
        )


def compare_teacher(bench: Workbench) -> list[str]:
    """One line for each environment with held-out tasks; nothing without a teacher, or if it is not to be compared.

    Checks first that the teacher's prompt of every task fits. Raises InputError if on some environment the whole
    interval of the teacher's lead is below 0, or nothing could be compared, unless `weaker_teacher` is acknowledged.
    """
    teacher, section = bench.teacher, bench.settings.teacher
    if teacher is None or section is None:
        return []
    for environment in bench.environments.values():
        split = environment.tasks()
        for task in (*split.train, *split.evaluation):
            teacher.turns.prompt_ids(teacher.task(task))
    if not section.compare_samples:
        return []
    found = [
        _compare(bench, teacher, name, tasks, section.compare_samples) for name, tasks in held_out_tasks(bench).items()
    ]
    if "weaker_teacher" not in bench.settings.policy.acknowledge:
        _check(section.path, found)
    return [str(comparison) for comparison in found]


def _check(path: str, found: Sequence[Comparison]) -> None:
    fix = 'Use a better one, or policy.acknowledge = ["weaker_teacher"].'
    if not any(c.lead is not None for c in found):
        problem = "no held-out task tells whether it is better than the student"
        raise InputError("teacher.path", path, problem, 'Hold tasks out, or policy.acknowledge = ["weaker_teacher"].')
    for comparison in found:
        if comparison.lead is not None and comparison.lead.high < 0.0:
            raise InputError("teacher.path", path, f"it is worse than the student: {comparison}", fix)


def _compare(bench: Workbench, teacher: TaughtBy, name: str, tasks: Sequence[Task], samples: int) -> Comparison:
    bench.engine.load_weights(bench.trainer.export())
    mine = _rewards(bench, bench.engine, bench.turns, tasks, samples, "student")
    shown = [teacher.task(task) for task in tasks]
    if teacher.facts is None:
        theirs = _rewards(bench, bench.engine, teacher.turns, shown, samples, "teacher")
    else:
        model: Any = teacher.model.model
        engine = build_engine(bench.preparation, model, teacher.facts.context_length)
        try:
            engine.load_weights(WeightSet.of(0, {n: p.detach() for n, p in model.named_parameters()}))
            theirs = _rewards(bench, engine, teacher.turns, shown, samples, "teacher")
        finally:
            engine.close()
    both = [task.task_id for task in tasks if task.task_id in mine and task.task_id in theirs]
    if not both:
        return Comparison(name, 0, float("nan"), float("nan"), None)
    a, b = (np.array([side[task] for task in both]) for side in (mine, theirs))
    lead = bootstrap_mean(b - a, both, seed=bench.settings.run.seed)
    return Comparison(name, len(both), float(a.mean()), float(b.mean()), lead)


def _rewards(
    bench: Workbench, engine: Engine, turns: Turns, tasks: Sequence[Task], samples: int, who: str
) -> dict[str, float]:
    """Mean reward of each task's gradable attempts, by task."""
    settings = bench.settings
    sampling = SamplingParams(
        bench.preparation.resolved.sizes.max_new_tokens,
        settings.evaluation.temperature,
        stop_token_ids=turns.stop_token_ids,
    )
    members = [
        member
        for task in tasks
        for member in members_of(task, f"{task.task_id}/{who}/0", samples, Role.EVALUATION, sampling, settings.run.seed)
    ]
    groups = sample(engine, turns, members, 0)
    grade(bench.environments, turns, [t for group in groups for t in group])
    return {g.task.task_id: float(np.mean(g.rewards)) for g in groups if len(g.rewards)}

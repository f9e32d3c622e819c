"""Evaluation on held-out tasks: sample, grade, store, summarise, compare with the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.environment.grading import GradedTasks
from posttrain.orchestration.evaluation import EvaluationSet, Summary, collect, summarize
from posttrain.orchestration.evaluation_report import evaluation_report
from posttrain.orchestration.gain import Gain, measure_gain, paired_tasks
from posttrain.orchestration.sampling import grade, members_of, sample
from posttrain.orchestration.workbench import SamplingBench
from posttrain.rollout.turns import Turns
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.files import DamagedFileError
from posttrain.rundir.trajectories import read_trajectories
from posttrain.trajectory import Role, SamplingParams, Task, Trajectory


def held_out_tasks(bench: SamplingBench) -> dict[str, Sequence[Task]]:
    """Held-out tasks by environment; environments without any are left out."""
    limit = bench.settings.evaluation.max_tasks
    found = {name: e.tasks().evaluation[:limit] for name, e in bench.environments.items()}
    return {name: tasks for name, tasks in found.items() if tasks}


def evaluate_policy(
    bench: SamplingBench, step: int, samples: int, attempt: int, run: RunDirectory | None
) -> dict[str, EvaluationSet]:
    """Evaluate the engine's current weights on every environment; trajectories are stored if there is a run.

    Group ids name the step, so evaluations draw from streams of their own that a resumed run repeats.
    """
    settings = bench.settings
    base = SamplingParams(
        bench.preparation.resolved.sizes.max_new_tokens,
        settings.evaluation.temperature,
        stop_token_ids=bench.turns.stop_token_ids,
    )
    greedy = SamplingParams(base.max_new_tokens, 0.0, stop_token_ids=base.stop_token_ids)
    results: dict[str, EvaluationSet] = {}
    for name, tasks in held_out_tasks(bench).items():
        members = [
            member
            for task in tasks
            for kind, size, sampling in (
                ("evaluation", samples, base),
                ("greedy", int(settings.evaluation.greedy), greedy),
            )
            for member in members_of(
                task, f"{task.task_id}/{kind}/{step}", size, Role.EVALUATION, sampling, settings.run.seed
            )
        ]
        groups = sample(bench.engine, bench.turns, members, attempt)
        trajectories = [t for group in groups for t in group]
        texts = grade(bench.environments, bench.turns, trajectories)
        if run is not None:
            run.write_evaluation(step, name, trajectories, texts)
        results[name] = _collect(name, trajectories, bench.environments[name], bench.turns)
    return results


def _collect(name: str, trajectories: Sequence[Trajectory], environment: GradedTasks, turns: Turns) -> EvaluationSet:
    def extract(trajectory: Trajectory) -> str | None:
        return environment.extract(turns.text(trajectory.model_token_ids))

    return collect(name, trajectories, success_threshold=environment.success_threshold, extract=extract)


def summaries(bench: SamplingBench, results: Mapping[str, EvaluationSet]) -> dict[str, Summary]:
    """Estimates by environment."""
    settings = bench.settings
    return {name: summarize(r, settings.evaluation.k, seed=settings.run.seed) for name, r in results.items()}


def stored_results(
    bench: SamplingBench, run: RunDirectory, step: int, say: Callable[[str], None]
) -> dict[str, EvaluationSet]:
    """An evaluation read back from the run directory; nothing where it was not made or, as told to ``say``, is damaged.

    Training is done when this is read: a damaged file must not keep the run from its end.
    """
    found: dict[str, EvaluationSet] = {}
    for name in held_out_tasks(bench):
        path = run.evaluation_path(step, name)
        if not path.is_file():
            continue
        try:
            found[name] = _collect(name, read_trajectories(path), bench.environments[name], bench.turns)
        except DamagedFileError as error:
            say(f"left out of the comparison: {error}")
    return found


def final_report(
    bench: SamplingBench, before: Mapping[str, EvaluationSet], after: Mapping[str, EvaluationSet]
) -> tuple[dict[str, Any], dict[str, Gain]]:
    """The summary document of a run, and the gain by environment, where a task was judged before and after."""
    settings = bench.settings
    tasks = held_out_tasks(bench)
    gains = {
        name: measure_gain(
            before[name],
            after[name],
            settings.evaluation.k,
            seed=settings.run.seed,
            constant_answer_success=constant_answer_success(tasks[name]),
        )
        for name in after
        if name in before and paired_tasks(before[name], after[name])
    }
    return evaluation_report(summaries(bench, before), summaries(bench, after), gains), gains


def constant_answer_success(tasks: Sequence[Task]) -> float | None:
    """What the most frequent gold answer would earn if it were given every time; ``None`` without gold answers."""
    golds = [str(task.gold) for task in tasks if task.gold is not None]
    return Counter(golds).most_common(1)[0][1] / len(tasks) if golds else None

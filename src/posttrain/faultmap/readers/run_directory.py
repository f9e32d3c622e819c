"""posttrain's own run directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from posttrain.errors import InputError
from posttrain.faultmap.history import Course, Facts, History, Sample
from posttrain.faultmap.printable import one_line
from posttrain.faultmap.readers.derive import derive
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.table import TableBuilder
from posttrain.faultmap.readers.timeline import keep_latest
from posttrain.rundir.info import RunInfo
from posttrain.rundir.metrics import MetricsRow
from posttrain.rundir.reading import LoadedRun, load_run
from posttrain.rundir.trajectories import StoredTrajectory
from posttrain.settings.chosen import anchor_weights, chosen_objective
from posttrain.settings.environments import reward_kind_of
from posttrain.settings.fixed import FixedSettings, learning_rate_of
from posttrain.settings.load import any_settings_from_mapping, settings_from_mapping
from posttrain.settings.schema import is_fixed
from posttrain.settings.tree import Settings
from posttrain.signals.framework import Framework


def is_run(path: Path) -> bool:
    """True if a folder is a run directory of posttrain."""
    return os.path.isfile(path / "run.json") and os.path.isdir(path / "trajectories")


def read_run(path: Path) -> History:
    """The history of a run directory. Raises InputError if it is none, or has no metrics yet."""
    return history_of(load_run(path))


def history_of(run: LoadedRun) -> History:
    """The history of a run that was read. Raises InputError if it has no metrics yet."""
    path = run.directory.path
    remarks = Remarks(problems=list(run.problems))
    courses = derive(courses_of(run.metrics.rows), Framework.POSTTRAIN, remarks)
    if not courses and not run.metrics.rows:
        raise InputError("PATH", str(path), "is a run without metrics", "Wait for its first step.")
    if run.metrics.superseded:
        remarks.note(f"{run.metrics.superseded} rows of earlier attempts were redone after a resume and are left out.")
    return History(
        Framework.POSTTRAIN,
        str(path),
        MappingProxyType(courses),
        facts_of(run.info, remarks) if run.info else Facts(),
        RunSamples(run) if run.trajectory_files else None,
        tuple(remarks.problems),
        tuple(remarks.notes),
    )


def courses_of(rows: Sequence[MetricsRow]) -> dict[str, Course]:
    """Courses of every signal in rows of one lineage; where two rows of a step hold a signal, the later counts."""
    builder = TableBuilder(most_keys=sys.maxsize, most_values=sys.maxsize)
    for row in rows:
        builder.add(row.values)
    steps = np.array([row.step for row in rows], np.int64)
    found: dict[str, Course] = {}
    for name, column in builder.build().columns.items():
        logged = steps[column.rows]
        kept = keep_latest(logged)
        found[name] = Course(name, logged[kept.order], column.values[kept.order])
    return found


def facts_of(info: RunInfo, remarks: Remarks) -> Facts:
    """What ``run.json`` says about the settings. Unreadable settings are a problem, not an error."""
    written = {key: value for key, value in info.settings.items() if key != "resolved"}
    try:
        if is_fixed(written):
            return _fixed_facts(info, any_settings_from_mapping(written))
        settings = settings_from_mapping(written)
        denominator = chosen_objective(settings.policy).ratio.denominator
        weights = anchor_weights(settings)
    except (InputError, ValueError, TypeError, KeyError) as error:
        remarks.problem(f"run.json: the settings cannot be read ({one_line(str(error))}).")
        return Facts(compute_dtype=info.plan.compute_dtype)
    policy, rollout = settings.policy, settings.rollout
    lengths = [c.value for c in info.choices if c.setting == "rollout.max_new_tokens" and isinstance(c.value, int)]
    architecture = info.facts.get("architecture")
    return Facts(
        algorithm=policy.algorithm,
        learning_rate=policy.learning_rate,
        warmup_steps=policy.warmup_steps,
        planned_steps=settings.run.steps,
        group_size=rollout.group_size,
        max_new_tokens=rollout.max_new_tokens if isinstance(rollout.max_new_tokens, int) else next(iter(lengths), None),
        temperature=rollout.temperature,
        anchor_weight=max(weights.values(), default=0.0),
        updates_per_batch=policy.updates_per_batch,
        corrected=denominator == "sampler",
        verifiable=all(reward_kind_of(e) == "verifiable" for e in settings.environments.values()),
        mixture_of_experts="moe" in architecture.lower() if isinstance(architecture, str) else None,
        asynchronous=False,
        staleness_limit=0,
        compute_dtype=info.plan.compute_dtype,
    )


def _fixed_facts(info: RunInfo, settings: Settings | FixedSettings) -> Facts:
    """Of a run on fixed data: nothing is sampled, so nothing is known of groups, lengths or age."""
    policy, architecture = settings.policy, info.facts.get("architecture")
    return Facts(
        algorithm=policy.algorithm,
        learning_rate=learning_rate_of(settings) if isinstance(settings, FixedSettings) else None,
        warmup_steps=policy.warmup_steps,
        planned_steps=settings.run.steps,
        updates_per_batch=1,
        mixture_of_experts="moe" in architecture.lower() if isinstance(architecture, str) else None,
        asynchronous=False,
        staleness_limit=0,
        compute_dtype=info.plan.compute_dtype,
    )


class RunSamples:
    """Trajectories of a run as text; evaluation is not among them."""

    def __init__(self, run: LoadedRun) -> None:
        self._run = run

    def steps(self) -> Sequence[int]:
        """Steps that have a trajectory file."""
        return list(self._run.trajectory_files)

    def read(self, step: int) -> Sequence[Sample]:
        """Samples of a step; empty, with a problem noted in the run, where its file cannot be read."""
        return [_sample(step, stored) for stored in self._run.trajectories(step)] if step in self.steps() else []


def _sample(step: int, stored: StoredTrajectory) -> Sample:
    t = stored.trajectory
    parts = t.grade.parts if t.grade else {}
    return Sample(
        step,
        "\n".join(message.content for message in t.task.messages),
        stored.completion or "",
        t.reward if t.is_gradable else None,
        {name: value for name, value in parts.items() if value is not None},
        t.group_id,
        str(t.finish_reason) if t.finish_reason else None,
        t.num_model_tokens,
    )

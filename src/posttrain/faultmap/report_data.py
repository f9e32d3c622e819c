"""Everything a report shows of a run, read once; what cannot be read is named, never hidden."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from posttrain.faultmap.report_samples import (
    Sample,
    StepGroups,
    count_groups,
    limit_samples,
    pair_evaluations,
    pick,
    spread,
)
from posttrain.faultmap.report_summary import as_mapping, number
from posttrain.rundir.info import RunInfo
from posttrain.rundir.reading import LoadedRun, load_run

MAX_FILES = 60
"""Trajectory files read for a report; of a longer run they are evenly spaced, first and last included."""


@dataclass(slots=True)
class RunView:
    """A run as the report sees it."""

    run: LoadedRun
    groups: list[StepGroups] = field(default_factory=list[StepGroups])
    samples: list[Sample] = field(default_factory=list[Sample])
    files_read: int = 0
    trajectories_read: int = 0
    notes: list[str] = field(default_factory=list[str])

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        return [*problems_of(self.run), *self.notes]


def load_view(path: Path) -> RunView:
    """Read a run directory. Raises InputError if there is none; damaged files in it become ``problems``."""
    view = RunView(load_run(path))
    thresholds = success_thresholds(view.run.info)
    for step in spread(list(view.run.trajectory_files), MAX_FILES):
        stored = view.run.trajectories(step)
        if stored:
            view.files_read += 1
            view.trajectories_read += len(stored)
            view.groups.append(count_groups(step, [s.trajectory for s in stored], thresholds))
            view.samples += pick(step, "train", stored)
    _add_evaluations(view)
    view.samples = limit_samples(view.samples)
    return view


def problems_of(run: LoadedRun) -> list[str]:
    """What could not be read, without the absolute path of the run: a report is given to others."""
    return [text.replace(f"{run.directory.path}/", "") for text in run.problems]


def success_thresholds(info: RunInfo | None) -> dict[str, float]:
    """Reward that counts as a success, by environment, as the run's settings say."""
    environments = info.settings.get("environments") if info else None
    found: dict[str, float] = {}
    for name, section in as_mapping(environments).items():
        value = number(as_mapping(section).get("success_threshold"))
        if value is not None:
            found[name] = value
    return found


def _add_evaluations(view: RunView) -> None:
    files = view.run.evaluation_files
    for name in sorted({name for _, name in files}):
        steps = [step for step, other in files if other == name]
        ends = {step: view.run.evaluation(step, name) for step in (steps[0], steps[-1])}
        for step, stored in ends.items():
            for sample in pick(step, "evaluation", stored):
                if "ungradable" in sample.tags:
                    sample.tags = ["ungradable"]
                    view.samples.append(sample)
        if len(ends) == 2:
            view.samples += pair_evaluations(ends[steps[0]], ends[steps[-1]], (steps[0], steps[-1]))

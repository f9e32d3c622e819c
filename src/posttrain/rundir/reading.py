"""Reads a whole run for people and detectors: what is damaged is named, what is left is used.

Nothing in a run directory is ever executed: JSON and Parquet only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.engine import EngineSeries, read_engine
from posttrain.rundir.files import DamagedFileError
from posttrain.rundir.info import RunInfo
from posttrain.rundir.metrics import MetricsTable, read_metrics
from posttrain.rundir.trajectories import StoredTrajectory, read_stored
from posttrain.trajectory import Role

_T = TypeVar("_T")


@dataclass(slots=True)
class LoadedRun:
    """A run as far as it can be read. ``problems`` grows when a damaged file is met."""

    directory: RunDirectory
    info: RunInfo | None
    metrics: MetricsTable
    engine: EngineSeries
    evaluation_summary: Mapping[str, Any] | None
    trajectory_files: Mapping[int, Path]
    evaluation_files: Mapping[tuple[int, str], Path]
    problems: list[str] = field(default_factory=list)

    def trajectories(self, step: int) -> list[StoredTrajectory]:
        """Trajectories of one training step, without the attempts that groups were only compared with; empty, with a
        problem noted, where they cannot be read."""
        stored = self._stored(self.trajectory_files.get(step), f"no trajectories of step {step}")
        return [s for s in stored if s.trajectory.role is not Role.BASELINE]

    def evaluation(self, step: int, name: str) -> list[StoredTrajectory]:
        """Trajectories of one evaluation; empty, with a problem noted, where they cannot be read."""
        return self._stored(self.evaluation_files.get((step, name)), f"no evaluation {name} of step {step}")

    def _stored(self, path: Path | None, absent: str) -> list[StoredTrajectory]:
        if path is None:
            problem = absent
        else:
            try:
                return read_stored(path)
            except DamagedFileError as error:
                problem = str(error)
        if problem not in self.problems:
            self.problems.append(problem)
        return []


def load_run(path: Path) -> LoadedRun:
    """Read everything but the trajectories, which are read when asked for. Raises InputError if it is no run."""
    directory = RunDirectory.open(path)
    problems: list[str] = []

    def attempt(read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except DamagedFileError as error:
            problems.append(str(error))
            return otherwise

    info = attempt(directory.info, None)
    metrics, engine = MetricsTable(()), EngineSeries(())
    # A run that has just begun has neither file yet.
    if directory.metrics_path.exists():
        resumed_from = resume_points(info) if info else {}
        metrics = attempt(lambda: read_metrics(directory.metrics_path, resumed_from), metrics)
    if directory.engine_path.exists():
        engine = attempt(lambda: read_engine(directory.engine_path), engine)
    return LoadedRun(
        directory=directory,
        info=info,
        metrics=metrics,
        engine=engine,
        evaluation_summary=attempt(directory.evaluation_summary, None),
        trajectory_files=directory.trajectory_files(),
        evaluation_files=directory.evaluation_files(),
        problems=[*problems, *metrics.problems, *engine.problems],
    )


def resume_points(info: RunInfo) -> dict[int, int]:
    """Step each attempt continued from; -1 for one that began from the beginning."""
    return {a.attempt: -1 if a.resumed_from_step is None else a.resumed_from_step for a in info.attempts}

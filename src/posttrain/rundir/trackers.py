"""TensorBoard, Weights & Biases, MLflow and Trackio behind one interface.

The run directory is the record; trackers are copies of it for people's dashboards. One that cannot start is a user
error; one that fails in mid-run is switched off with a warning, and the run goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from posttrain.errors import InputError


class Tracker(Protocol):
    """Where values go, besides the run directory."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of one step."""
        ...

    def close(self) -> None:
        """Send what is left and let go."""
        ...


@dataclass(frozen=True, slots=True)
class TrackerContext:
    """What a tracker needs to know of the run. ``run_id`` stays the same when the run is resumed.

    ``first_step`` is the first step this process will log; later ones of an earlier attempt are superseded.
    """

    directory: Path
    project: str
    run_name: str
    run_id: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_step: int = 0


class TensorBoardTracker:
    """Event files in ``tensorboard/``, written by TensorBoard's own writer, which needs no torch."""

    name = "tensorboard"

    def __init__(self, context: TrackerContext) -> None:
        writer = _import("tensorboard.summary.writer.event_file_writer", self.name)
        self._event = _import("tensorboard.compat.proto.event_pb2", self.name)
        self._summary = _import("tensorboard.compat.proto.summary_pb2", self.name)
        self._writer: Any = writer.EventFileWriter(str(context.directory / "tensorboard"), flush_secs=5)
        if context.first_step > 0:
            # Tells TensorBoard to drop what an earlier attempt wrote from this step on.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(step=context.first_step, session_log=start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one event with all values."""
        rows = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=self._summary.Summary(value=rows))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

    def _add(self, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), **content))


class WandbTracker:
    """Weights & Biases. Where it sends to is its own configuration (``WANDB_MODE``, ``WANDB_BASE_URL``...)."""

    name = "wandb"

    def __init__(self, context: TrackerContext) -> None:
        wandb: Any = _import("wandb", self.name)
        self._run: Any = wandb.init(
            project=context.project,
            name=context.run_name,
            id=context.run_id,
            resume="allow",
            dir=str(context.directory),
            config=dict(context.settings),
        )
        # An own step axis: wandb's internal one refuses steps that an earlier attempt has logged.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values with their step."""
        self._run.log({**values, "step": step})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowTracker:
    """MLflow, at its own tracking address (``MLFLOW_TRACKING_URI``), else ``mlflow.db`` in the run directory."""

    name = "mlflow"

    def __init__(self, context: TrackerContext) -> None:
        mlflow: Any = _import("mlflow", self.name)
        tracking: Any = _import("mlflow.tracking", self.name)
        address = str(mlflow.get_tracking_uri()) if mlflow.is_tracking_uri_set() else None
        self._client: Any = tracking.MlflowClient(address or f"sqlite:///{context.directory.absolute()}/mlflow.db")
        self._run_id = self._resumed(context) or self._created(context)

    def _resumed(self, context: TrackerContext) -> str | None:
        experiment = self._client.get_experiment_by_name(context.project)
        if experiment is None:
            return None
        found = self._client.search_runs([experiment.experiment_id], f"tags.posttrain_run_id = '{context.run_id}'")
        if not found:
            return None
        run_id = str(found[0].info.run_id)
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _created(self, context: TrackerContext) -> str:
        experiment = self._client.get_experiment_by_name(context.project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(context.project)
        tags = {"posttrain_run_id": context.run_id}
        run_id = str(self._client.create_run(experiment_id, tags=tags, run_name=context.run_name).info.run_id)
        for name, value in flatten(context.settings).items():
            self._client.log_param(run_id, name, str(value)[:500])
        return run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values; a name MLflow does not allow has ``@`` written as ``_at_``."""
        entities: Any = _import("mlflow.entities", self.name)
        now = int(time.time() * 1000)
        metrics = [entities.Metric(mlflow_name(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


class TrackioTracker:
    """Trackio, which keeps its data where it is configured to (``TRACKIO_DIR``)."""

    name = "trackio"

    def __init__(self, context: TrackerContext) -> None:
        self._trackio: Any = _import("trackio", self.name)
        self._trackio.init(
            # A run is found again by its name there, so the name is the one that no other run has.
            project=context.project,
            name=context.run_id,
            resume="allow",
            config=dict(context.settings),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values at their step."""
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._trackio.finish()


_TRACKERS: Mapping[str, Callable[[TrackerContext], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}

TRACKER_NAMES: tuple[str, ...] = tuple(_TRACKERS)


class Trackers:
    """All trackers of a run. One that raises while logging is switched off, said once, and counted."""

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None]) -> None:
        self._active = list(trackers)
        self._warn = warn
        self.failures: dict[str, str] = {}
        """Trackers that were switched off, and why."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of one step to every tracker that still works. Never raises."""
        self._each("log", lambda tracker: tracker.log(step, values))

    def close(self) -> None:
        """Close every tracker that still works. Never raises."""
        self._each("close", lambda tracker: tracker.close())
        self._active.clear()

    def _each(self, verb: str, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._active):
            try:
                action(tracker)
            except Exception as error:  # a dashboard must not end a run
                self._active.remove(tracker)
                self.failures[tracker.name] = _one_line(error)
                self._warn(
                    f"tracker {tracker.name} is switched off: it could not {verb} ({self.failures[tracker.name]}). "
                    "The run directory keeps every value."
                )


def check_trackers(names: Sequence[str]) -> None:
    """Raise InputError if the package of a tracker is not installed: known before a run directory is made."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise _not_installed(name, f"there is no package {name}")


def open_trackers(names: Sequence[str], context: TrackerContext, warn: Callable[[str], None]) -> Trackers:
    """Start the named trackers.

    Raises InputError on an unknown name, on a package that is not installed, and on a tracker that cannot start;
    those already started are closed.
    """
    started: list[Tracker] = []
    for name in names:
        try:
            if name not in _TRACKERS:
                raise InputError("rundir.trackers", name, "no such tracker", f"Choose from {', '.join(TRACKER_NAMES)}.")
            started.append(_TRACKERS[name](context))
        except Exception as error:
            Trackers(started, warn).close()
            if isinstance(error, InputError):
                raise
            raise InputError(
                "rundir.trackers", name, f"cannot start ({_one_line(error)})", "Fix it or leave it out."
            ) from error
    return Trackers(started, warn)


def mlflow_name(name: str) -> str:
    """A metric name MLflow accepts: letters, digits, ``_ - . / :`` and spaces."""
    return re.sub(r"[^A-Za-z0-9_\-./: ]", "_", name.replace("@", "_at_"))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _import(module: str, tracker: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(tracker, _one_line(error)) from error


def _not_installed(tracker: str, why: str) -> InputError:
    fix = "Install it with: pip install 'posttrain[trackers]'."
    return InputError("rundir.trackers", tracker, f"its package cannot be imported ({why})", fix)

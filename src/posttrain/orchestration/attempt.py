"""What every kind of run does around its loop: how it begins, what it says of itself, how an attempt is recorded."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rich.console import Console

from posttrain.errors import InputError
from posttrain.faultmap.finding import Finding
from posttrain.model.load import ModelFacts
from posttrain.orchestration.accounting import MemoryItem, memory_json
from posttrain.orchestration.watch import Watch, check_names, sentence, stop_lines
from posttrain.rundir.checkpoints import LatestGood, remove_leftovers
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import ExecutionPlan, PolicyIdentity, RunInfo, machine_info, package_versions
from posttrain.rundir.metrics import MetricsWriter
from posttrain.rundir.trackers import TrackerContext, Trackers, open_trackers
from posttrain.settings import FixedSettings, Settings, any_settings_from_mapping
from posttrain.settings.overrides import parse_overrides
from posttrain.settings.resolve import Resolved
from posttrain.settings.resolve_fixed import FixedResolved
from posttrain.settings.schema import dotted

OK, STOPPED, INTERRUPTED = 0, 1, 130

_AnySettings = TypeVar("_AnySettings", Settings, FixedSettings)


class Teller(Protocol):
    """Shows lines of a run to people while it works."""

    def message(self, text: str) -> None:
        """Something worth knowing."""
        ...

    def finding(self, text: str) -> None:
        """Something a detector found."""
        ...


@dataclass(slots=True)
class AttemptRecord:
    """One process's work on a run: ``number`` in order, ``outcome`` and ``detail`` as they will be written."""

    number: int
    outcome: str = "failed"
    detail: str = ""


@contextmanager
def recorded_attempt(run: RunDirectory, resumed_from: int | None) -> Generator[AttemptRecord]:
    """An attempt from its beginning to its end, which is written however it comes."""
    attempt = run.begin_attempt(machine_info(), resumed_from_step=resumed_from)
    record = AttemptRecord(attempt.attempt)
    try:
        yield record
    except KeyboardInterrupt:
        record.outcome, record.detail = "interrupted", "stopped at once; the last checkpoint is kept"
        raise
    except Exception as error:
        record.outcome, record.detail = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        run.end_attempt(attempt, record.outcome, record.detail)


@dataclass(frozen=True, slots=True)
class Instruments:
    """Where a loop writes its numbers, and who looks at them."""

    metrics: MetricsWriter
    trackers: Trackers
    watch: Watch


def open_instruments(
    stack: ExitStack, run: RunDirectory, settings: Settings | FixedSettings, attempt: int, step: int, teller: Teller
) -> Instruments:
    """Open them for an attempt that goes on after ``step``; ``stack`` closes them."""
    metrics = stack.enter_context(MetricsWriter(run.metrics_path, attempt))
    context = TrackerContext(run.path, "posttrain", settings.run.name, run.path.name, settings.to_mapping(), step + 1)
    trackers = open_trackers(settings.rundir.trackers, context, teller.message)
    stack.callback(trackers.close)
    return Instruments(metrics, trackers, Watch.begin(run, attempt, step, settings.faultmap, teller.finding))


def ended_early(
    record: AttemptRecord, run: RunDirectory, step: int, stopped_by: Finding | None, console: Console
) -> int:
    """Record and print why a loop ended before its last step. Returns the exit code."""
    if stopped_by is None:
        record.outcome = "interrupted"
        console.print(f"stopped after step {step}; go on with: posttrain resume {run.path}")
        return INTERRUPTED
    record.outcome, record.detail = "stopped", sentence(stopped_by)
    print_lines(console, stop_lines(stopped_by, step, run.path))
    return STOPPED


def watched_anew(settings: _AnySettings, overrides: Sequence[str]) -> _AnySettings:
    """The stored settings with what was given of ``[faultmap]``: what is trained does not depend on who watches it.

    Raises InputError for any other setting.
    """
    for override in parse_overrides(overrides):
        if override.path[0] != "faultmap":
            problem = "cannot be changed: a resumed run goes on with the settings it was begun with"
            raise InputError(dotted(override.path), override.text, problem, "Give --faultmap settings only.")
    watched = any_settings_from_mapping(settings.to_mapping(), overrides)
    assert isinstance(watched, type(settings))
    check_names(watched.faultmap)
    return watched


def model_line(facts: ModelFacts) -> str:
    """Which model, and how much of it is trained."""
    trained = facts.trainable_parameters / 1e6
    return f"{facts.architecture}, {facts.parameters / 1e6:.1f} million parameters, {trained:.1f} trained"


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, unwrapped."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def run_info(
    resolved: Resolved | FixedResolved,
    model: ModelFacts,
    memory: Sequence[MemoryItem],
    identity: Sequence[PolicyIdentity],
    more: Mapping[str, Any],
) -> RunInfo:
    """What ``run.json`` says of a run that begins; ``more`` are facts of its kind."""
    settings, machine = resolved.settings, resolved.machine
    return RunInfo(
        name=settings.run.name,
        seed=settings.run.seed,
        created=time.time(),
        settings={**settings.to_mapping(), "resolved": resolved.to_mapping()},
        plan=ExecutionPlan(
            machine.device,
            machine.threads,
            machine.compute_dtype,
            settings.model.master_dtype,
            resolved.sizes.micro_batch_tokens,
        ),
        choices=resolved.choices,
        policy_identity=tuple(identity),
        versions=package_versions(),
        facts={
            "architecture": model.architecture,
            "parameters": model.parameters,
            "trainable_parameters": model.trainable_parameters,
            "memory": memory_json(memory),
            **more,
        },
    )


def drop_damaged(found: LatestGood, run: RunDirectory, console: Console) -> None:
    """Remove what a killed process left of a checkpoint, and say which checkpoints cannot be used."""
    remove_leftovers(run.checkpoints_path)
    print_lines(console, (f"checkpoint {skipped.path.name} is skipped: {skipped.why}" for skipped in found.skipped))

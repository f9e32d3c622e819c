"""The doctor beside the training loop: the same detectors, asked at each step, with the power to stop the run.

What they say is shown, kept in ``findings.jsonl`` and forgotten otherwise: nothing in it reaches the policy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.errors import InputError
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.change import Change, Event, Key, changes
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.diagnosis import Diagnosis, diagnose
from posttrain.faultmap.doctor_json import finding_json
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.layers import numbered
from posttrain.faultmap.live import LiveHistory
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.run_directory import RunSamples, facts_of
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.engine import EngineSeries
from posttrain.rundir.findings import ACKNOWLEDGED, acknowledged, append_finding_event, read_finding_events
from posttrain.rundir.metrics import MetricsTable, read_metrics
from posttrain.rundir.reading import LoadedRun, resume_points
from posttrain.settings.tree import FaultmapSettings
from posttrain.signals.framework import Framework

LOOKS = 1000
"""Steps up to which every one is looked at; a run of n thousand steps is looked at every n steps.

A look costs time in proportion to the steps behind it; so all looks together stay in proportion to the run.
"""


def check_names(settings: FaultmapSettings) -> None:
    """Raise InputError for an acknowledged name that no finding can have."""
    known = [*(d.name for d in DETECTORS), *SYMPTOMS, *CAUSES]
    for name in settings.ignore:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            fix = f"The nearest: {nearest[0]}." if nearest else "All of them: posttrain explain."
            raise InputError("faultmap.ignore", name, "is no detector, symptom or cause", fix)


@dataclass(slots=True)
class Watch:
    """Everything measured so far and what was last found in it.

    ``tell`` shows a line to people. ``trajectory_files`` is the run's list of files, to which the loop adds.
    """

    path: Path
    attempt: int
    settings: FaultmapSettings
    live: LiveHistory
    trajectory_files: dict[int, Path]
    tell: Callable[[str], None]
    ignored: frozenset[str] = frozenset()
    _found: tuple[Finding, ...] = ()
    _told: set[tuple[Key, Severity]] = field(default_factory=set[tuple[Key, Severity]])
    _failed: set[str] = field(default_factory=set[str])

    @classmethod
    def begin(
        cls, run: RunDirectory, attempt: int, step: int, settings: FaultmapSettings, tell: Callable[[str], None]
    ) -> Watch:
        """Watch a new run, or go on after ``step`` of one: with its metrics up to there and what was acknowledged."""
        info = run.info()
        path = run.findings_path
        ignored = frozenset(acknowledged(read_finding_events(path)) | set(settings.ignore))
        if settings.ignore:
            append_finding_event(path, attempt=attempt, step=step, event=ACKNOWLEDGED, names=sorted(settings.ignore))
        files = {s: file for s, file in run.trajectory_files().items() if s <= step}
        loaded = LoadedRun(run, info, MetricsTable(()), EngineSeries(()), None, files, {})
        live = LiveHistory(str(run.path), facts_of(info, Remarks()), RunSamples(loaded))
        if run.metrics_path.exists():
            for row in read_metrics(run.metrics_path, resume_points(info)).rows:
                if row.step <= step:
                    live.add(row.step, row.values)
        return cls(path, attempt, settings, live, files, tell, ignored)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take what was measured at a step."""
        self.live.add(step, values)

    def look(self, step: int, *, last: bool = False) -> Finding | None:
        """Ask the detectors, record and show what changed. Returns the finding that is to stop the run, if any.

        Long runs are not looked at in every step; ``last`` forces a look.
        """
        if not last and step % (1 + step // LOOKS):
            return None
        diagnosis = diagnose(self.live.history())
        for key, change in changes(self._found, diagnosis.all_findings):
            self._record(step, key, change)
        self._tell_failures(step, diagnosis)
        self._found = diagnosis.all_findings
        return stopping(diagnosis, self.settings, self.ignored)

    def _record(self, step: int, key: Key, change: Change) -> None:
        finding = change.finding
        body = finding_json(finding, Framework.POSTTRAIN)
        append_finding_event(self.path, attempt=self.attempt, step=step, event=change.event.value, finding=body)
        mark = key, finding.severity
        if change.event in (Event.NEW, Event.WORSE) and finding.severity > Severity.INFO and mark not in self._told:
            self._told.add(mark)
            self.tell(f"step {step} {sentence(finding)}")

    def _tell_failures(self, step: int, diagnosis: Diagnosis) -> None:
        for failure in diagnosis.failures:
            if failure.detector not in self._failed:
                self._failed.add(failure.detector)
                self.tell(f"step {step} detector {failure.detector} failed: {failure.problem}")
                append_finding_event(
                    self.path,
                    attempt=self.attempt,
                    step=step,
                    event="failed",
                    detector=failure.detector,
                    problem=failure.problem,
                )


def stopping(diagnosis: Diagnosis, settings: FaultmapSettings, ignored: frozenset[str]) -> Finding | None:
    """The first finding that stops a run: severe enough, still going on, and acknowledged under none of its names."""
    if settings.stop_on == "off":
        return None
    for rooted in diagnosis.findings:
        for finding in (rooted.finding, *rooted.consequences):
            severe = finding.severity >= Severity[settings.stop_on.upper()] and finding.last_step is None
            names = {finding.detector, finding.symptom, finding.cause}
            names |= {rooted.finding.detector, rooted.finding.symptom, rooted.finding.cause}
            if severe and not names & ignored:
                return finding
    return None


def sentence(finding: Finding) -> str:
    """A finding in one line: severity, symptom, cause and its layer, numbers."""
    symptom, cause = SYMPTOMS[finding.symptom], CAUSES[finding.cause]
    title = cause.title[0].lower() + cause.title[1:]
    return f"{finding.severity}: {symptom.title}: {title} ({numbered(cause.layer)}). {finding.summary}"


def stop_lines(finding: Finding, step: int, run: Path) -> Sequence[str]:
    """What to say when a finding stops a run, and how to go on."""
    return (
        f"stopped after step {step} by {sentence(finding)}",
        f"everything is saved. Why, and what to do: posttrain doctor {run}",
        f"go on all the same: posttrain resume {run} --faultmap.ignore {finding.detector}",
    )

"""From a history to a diagnosis: every detector asked, findings ranked by what to repair first, one row for each layer.

The order: severity, then what follows from what, then onset, then the order of inspection (reward, update,
log-probs, rollout, parallelism, schedule). A finding that follows from another is shown under it and lends it
its severity.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import History
from posttrain.signals.registry import SIGNALS, UnknownSignalError, signal_for
from posttrain.signals.signal import Layer

SLACK_SHARE = 0.05
SLACK_POINTS = 2
"""How much later than its consequence a root may be seen to begin: a share of the run, at least so many logged points.

Two detectors never date the same event to the very same step.
"""


class State(StrEnum):
    """What is known about a layer."""

    HEALTHY = "healthy"
    INFO = "info"
    WARN = "warn"
    CRITICAL = "critical"
    UNKNOWN = "cannot be judged"


@dataclass(frozen=True, slots=True)
class Rooted:
    """A finding and those that follow from it, the most severe first."""

    finding: Finding
    consequences: tuple[Finding, ...] = ()

    @property
    def severity(self) -> Severity:
        """The highest of the finding's and its consequences'."""
        return max(f.severity for f in (self.finding, *self.consequences))


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A detector that could not judge: at least one signal of each entry of ``missing`` would have to be logged."""

    detector: Detector
    missing: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A detector that raised or named what the map does not have: a fault of posttrain, not of the run."""

    detector: str
    problem: str


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer: its state, the worst finding whose cause or symptom lies in it, and what could not be judged."""

    layer: Layer
    state: State
    worst: Finding | None
    unjudged: tuple[Unjudged, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the detectors say about a history; ``findings`` in the order in which to repair, ``rows`` by layer.

    ``judged`` is the number of detectors that had what they need and did not fail.
    """

    history: History
    findings: tuple[Rooted, ...]
    rows: tuple[LayerRow, ...]
    judged: int
    unjudged: tuple[Unjudged, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Every finding, consequences behind their root."""
        return tuple(f for rooted in self.findings for f in (rooted.finding, *rooted.consequences))

    @property
    def severity(self) -> Severity | None:
        """The highest severity, or ``None`` where nothing was found."""
        return max((f.severity for f in self.all_findings), default=None)


def diagnose(history: History, detectors: Sequence[Detector] = DETECTORS) -> Diagnosis:
    """Ask every detector that has what it needs. One that raises is recorded as a failure; the others still speak."""
    findings: list[Finding] = []
    unjudged: list[Unjudged] = []
    failures: list[Failure] = []
    for detector in detectors:
        missing = detector.missing(history)
        if missing:
            unjudged.append(Unjudged(detector, tuple(missing)))
            continue
        try:
            findings += _checked(detector, detector.judge(history))
        except Exception as error:
            failures.append(Failure(detector.name, _problem(error)))
    findings = _without_silent(findings, detectors)
    silent = {u.detector.name for u in unjudged} | {f.detector for f in failures}
    asked = [d for d in detectors if d.name not in silent]
    rows = tuple(_row(layer, history, findings, asked, unjudged) for layer in Layer)
    relations = {d.name: d.yields_to for d in detectors}
    ranked = rank(findings, relations, slack_of(history))
    return Diagnosis(history, ranked, rows, len(asked), tuple(unjudged), tuple(failures))


def _without_silent(findings: Sequence[Finding], detectors: Sequence[Detector]) -> list[Finding]:
    """The findings but those of detectors that say nothing beside another's warning."""
    warning = {finding.detector for finding in findings if finding.severity >= Severity.WARN}
    silent = {detector.name for detector in detectors if not warning.isdisjoint(detector.silent_beside)}
    return [finding for finding in findings if finding.detector not in silent]


def slack_of(history: History) -> float:
    """Steps within which two onsets count as one."""
    courses = [c for c in history.courses.values() if len(c)]
    if not courses:
        return 0.0
    span = max(int(c.steps[-1]) for c in courses) - min(int(c.steps[0]) for c in courses) + 1
    return max(SLACK_SHARE * span, SLACK_POINTS * span / max(len(c) for c in courses))


def rank(findings: Sequence[Finding], yields_to: Mapping[str, Sequence[str]], slack: float) -> tuple[Rooted, ...]:
    """Order findings by what to repair first, consequences under their root.

    ``yields_to`` maps a detector to those whose findings explain its own; ``slack`` is in steps.
    """
    by_onset = sorted(findings, key=_onset_order)
    parents = {i: _parent(i, by_onset, yields_to, slack) for i in range(len(by_onset))}
    followers: dict[int, list[Finding]] = {}
    for i, finding in enumerate(by_onset):
        root = _root(i, parents, by_onset)
        followers.setdefault(root, [])
        if root != i:
            followers[root].append(finding)
    rooted = [
        Rooted(by_onset[root], tuple(sorted(found, key=lambda f: (-f.severity, *_onset_order(f)))))
        for root, found in followers.items()
    ]
    return tuple(_ordered(rooted, slack))


_Order = tuple[int, int, float, str, str, int, str]


def _onset_order(finding: Finding) -> _Order:
    layer = CAUSES[finding.cause].layer
    return (
        finding.onset_step, layer, -finding.confidence, finding.detector, finding.cause, -finding.severity,
        finding.summary,
    )  # fmt: skip


def _parent(
    index: int, findings: Sequence[Finding], yields_to: Mapping[str, Sequence[str]], slack: float
) -> int | None:
    """The finding that explains this one: of those that began in time, the most severe, then the earliest.

    What a detector says again of the same cause is the first trouble gone further.
    """
    finding = findings[index]
    for i, other in enumerate(findings[:index]):
        if (other.detector, other.cause) == (finding.detector, finding.cause):
            return i
    names = yields_to.get(finding.detector, ())
    candidates = [
        i
        for i, other in enumerate(findings)
        if other.detector in names
        and other.detector != finding.detector
        and other.onset_step <= finding.onset_step + slack
    ]
    return min(candidates, key=lambda i: (-findings[i].severity, i), default=None)


def _root(index: int, parents: Mapping[int, int | None], findings: Sequence[Finding]) -> int:
    """Follow the parents up. Of findings that explain each other in a ring, the surest is the root, then the first."""
    path = [index]
    while (parent := parents[path[-1]]) is not None:
        if parent in path:
            return min(path[path.index(parent) :], key=lambda i: (-findings[i].confidence, i))
        path.append(parent)
    return path[-1]


def _ordered(rooted: Sequence[Rooted], slack: float) -> list[Rooted]:
    """Severity first; onsets within the slack of the earliest count as equal, and the order of inspection decides."""
    era: dict[int, int] = {}
    anchor = None
    for one in sorted(rooted, key=lambda r: r.finding.onset_step):
        step = one.finding.onset_step
        if anchor is None or step > anchor + slack:
            anchor = step
        era[step] = anchor

    def key(one: Rooted) -> tuple[int, int, int, float, _Order]:
        finding = one.finding
        layer = CAUSES[finding.cause].layer
        return -one.severity, era[finding.onset_step], layer, -finding.confidence, _onset_order(finding)

    return sorted(rooted, key=key)


def _checked(detector: Detector, findings: Sequence[Finding]) -> Sequence[Finding]:
    for finding in findings:
        if finding.detector != detector.name:
            raise ValueError(f"signs as {finding.detector}")
        unknown = [c.cause for c in finding.differential if c.cause not in CAUSES]
        if finding.symptom not in SYMPTOMS or finding.cause not in CAUSES or unknown:
            raise ValueError(f"names what the map does not have: {finding.symptom}, {finding.cause}, {unknown}")
    return findings


def _problem(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"


def _row(
    layer: Layer, history: History, findings: Sequence[Finding], asked: Sequence[Detector], unjudged: Sequence[Unjudged]
) -> LayerRow:
    here = [f for f in findings if layer in (CAUSES[f.cause].layer, SYMPTOMS[f.symptom].layer)]
    worst = min(here, key=lambda f: (-f.severity, CAUSES[f.cause].layer is not layer, *_onset_order(f)), default=None)
    could_not = tuple(u for u in unjudged if SYMPTOMS[u.detector.symptom].layer is layer)
    if worst is not None:
        return LayerRow(layer, State(str(worst.severity)), worst, could_not)
    judged = any(_looks_at(detector, layer, history) for detector in asked)
    return LayerRow(layer, State.HEALTHY if judged else State.UNKNOWN, None, could_not)


def _looks_at(detector: Detector, layer: Layer, history: History) -> bool:
    """True if the detector read a signal of this layer, or its symptom lies there."""
    if SYMPTOMS[detector.symptom].layer is layer:
        return True
    names = [name for need in detector.needs for name in need] + list(detector.sharpened_by)
    return any(_layer_of(name) is layer and _logged(name, history) for name in names)


def _layer_of(name: str) -> Layer | None:
    try:
        return (SIGNALS.get(name) or signal_for(name)).layer
    except UnknownSignalError:
        return None


def _logged(name: str, history: History) -> bool:
    prefix, brace, _ = name.partition("{")
    return any(key.startswith(prefix) for key in history.courses) if brace else history.has(name)

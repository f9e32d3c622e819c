"""A detector asked at each step of a run, as in training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import History


@dataclass(frozen=True)
class Watched:
    """What a detector said at each step (findings of a step; steps ascend)."""

    said: dict[int, tuple[Finding, ...]]

    def first(self, severity: Severity = Severity.WARN) -> int | None:
        """First step with a finding of at least this severity."""
        return next((step for step, found in self.said.items() if any(f.severity >= severity for f in found)), None)

    def flickers(self, severity: Severity = Severity.WARN) -> int:
        """How often findings of at least this severity went away again while the run went on."""
        loud = [any(f.severity >= severity for f in found) for found in self.said.values()]
        return sum(before and not after for before, after in pairwise(loud))

    @property
    def last(self) -> tuple[Finding, ...]:
        """Findings at the end of the run, the most severe first."""
        return tuple(sorted(list(self.said.values())[-1], key=lambda f: -f.severity))


def watch(detector: Detector, run: History) -> Watched:
    """Ask the detector about the history up to every logged step."""
    said: dict[int, tuple[Finding, ...]] = {}
    for step in run.steps:
        known = run.until(int(step))
        said[int(step)] = () if detector.missing(known) else tuple(detector.judge(known))
    return Watched(said)


def first_named(detector: Detector, run: History, severity: Severity = Severity.WARN) -> int | None:
    """See `Watched.first`."""
    return watch(detector, run).first(severity)


def flickers(detector: Detector, run: History, severity: Severity = Severity.WARN) -> int:
    """See `Watched.flickers`."""
    return watch(detector, run).flickers(severity)

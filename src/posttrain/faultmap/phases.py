"""Who worked when, and who waited for whom, from the durations in the metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.rundir.metrics import MetricsRow

ORDER = ("rollout", "grading", "scoring", "training", "sync", "writing", "evaluation", "checkpoint")
"""Phases in the order in which a synchronous step goes through them."""
LANES = ("engine", "grader", "trainer", "other")
LANE_OF = {
    "rollout": "engine",
    "evaluation": "engine",
    "grading": "grader",
    "scoring": "trainer",
    "training": "trainer",
    "sync": "other",
    "writing": "other",
    "checkpoint": "other",
}
LONG_PAUSE = 30.0
"""Seconds without any record that count as a pause between two attempts."""
SHOWN_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of work. Times are seconds; ``step`` is the step it belongs to."""

    name: str
    start: float
    end: float
    step: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much of the run one part worked, and during which phases of the others it waited (largest first)."""

    lane: str
    busy: float
    waits_for: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall-clock time as time of the run: pauses of more than LONG_PAUSE seconds are cut to SHOWN_PAUSE."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    offsets: tuple[float, ...]

    def __call__(self, wall: float) -> float:
        """Seconds since the start of the run."""
        for start, end, offset in zip(self.starts, self.ends, self.offsets, strict=True):
            if wall <= end:
                return offset + max(0.0, wall - start)
        return self.offsets[-1] + self.ends[-1] - self.starts[-1] if self.starts else 0.0

    @property
    def total(self) -> float:
        """Length of the run in seconds, long pauses cut."""
        return self(math.inf)


def phases_of(rows: Sequence[MetricsRow]) -> list[Phase]:
    """Lay the measured durations of each row one after the other, so that they end when the row was written."""
    found: list[Phase] = []
    for row in rows:
        durations = [(name, row.values.get(f"time/{name}", 0.0)) for name in ORDER]
        durations = [(name, seconds) for name, seconds in durations if math.isfinite(seconds) and seconds > 0]
        step = row.values.get("time/step", 0.0)
        total = sum(seconds for _, seconds in durations)
        at = row.time - max(total, step if math.isfinite(step) else 0.0)
        for name, seconds in durations:
            found.append(Phase(name, at, at + seconds, row.step))
            at += seconds
    return sorted(found, key=lambda phase: phase.start)


def clock_of(phases: Sequence[Phase], times: Sequence[float]) -> Clock:
    """The clock of a run from its phases and the times of its engine records."""
    spans = sorted([(p.start, p.end) for p in phases] + [(t - 0.5, t + 0.5) for t in times])
    merged: list[list[float]] = []
    for start, end in spans:
        if merged and start - merged[-1][1] <= LONG_PAUSE:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    offsets: list[float] = []
    at = 0.0
    for start, end in merged:
        offsets.append(at)
        at += end - start + SHOWN_PAUSE
    return Clock(tuple(m[0] for m in merged), tuple(m[1] for m in merged), tuple(offsets))


def waiting_of(phases: Sequence[Phase]) -> list[Waiting]:
    """Shares of the recorded time: engine, grader and trainer at work, and what each waited for."""
    total = sum(p.seconds for p in phases)
    if total <= 0:
        return []
    rows: list[Waiting] = []
    for lane in LANES[:-1]:
        others: dict[str, float] = {}
        for p in phases:
            if LANE_OF[p.name] != lane:
                others[p.name] = others.get(p.name, 0.0) + p.seconds / total
        busy = sum(p.seconds for p in phases if LANE_OF[p.name] == lane) / total
        rows.append(Waiting(lane, busy, tuple(sorted(others.items(), key=lambda item: -item[1]))))
    return rows


def coarsen(phases: Sequence[Phase], columns: int) -> list[Phase]:
    """At most ``columns`` phases a lane: in each slice of time the phase that took most of it."""
    if not phases:
        return []
    start, end = min(p.start for p in phases), max(p.end for p in phases)
    width = (end - start) / columns or 1.0
    shares: dict[tuple[int, str], dict[str, float]] = {}
    steps: dict[int, int] = {}
    for p in phases:
        for column in range(int((p.start - start) / width), min(int((p.end - start) / width), columns - 1) + 1):
            left = start + column * width
            part = min(p.end, left + width) - max(p.start, left)
            slot = shares.setdefault((column, LANE_OF[p.name]), {})
            slot[p.name] = slot.get(p.name, 0.0) + part
            steps[column] = p.step
    coarse: list[Phase] = []
    for (column, _), slot in shares.items():
        name = max(slot, key=lambda n: slot[n])
        left = start + column * width
        coarse.append(Phase(name, left, left + min(width, max(slot.values())), steps[column]))
    return sorted(coarse, key=lambda p: p.start)

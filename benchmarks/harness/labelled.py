"""Logs with a known truth, what tools say of them, and how that is counted."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

SEVERITIES = ("info", "warn", "critical")
LAYERS = ("environment", "policy", "logprobs", "rollout", "parallel", "schedule")


@dataclass(frozen=True, slots=True)
class Truth:
    """A labelled run. ``onset`` is 0 where it is not known; ``expected`` is finding, info, faint, none or unseen."""

    name: str
    source: str
    logs: Mapping[str, Path]
    steps: int
    fault: str
    onset: int
    expected: str
    cause_layer: str

    @classmethod
    def read(cls, directory: Path) -> Truth:
        """From ``truth.json``."""
        found = json.loads((directory / "truth.json").read_text())
        return cls(
            found["name"],
            found["source"],
            {name: directory / path for name, path in found["logs"].items()},
            found["steps"],
            found["fault"] or "",
            found["onset_step"] or 0,
            found["expected"],
            found.get("cause_layer") or "",
        )


@dataclass(frozen=True, slots=True)
class Said:
    """One finding of a tool. ``symptom`` and ``cause_layer`` are empty where the tool names none."""

    name: str
    severity: str
    onset: int | None = None
    symptom: str = ""
    cause_layer: int = 0
    text: str = ""

    @property
    def serious(self) -> bool:
        """Warn or worse."""
        return self.severity != "info"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One log by one tool. ``alike_names`` are right for faults of such a log; ``failure`` why it said nothing."""

    tool: str
    log: str
    truth: Truth
    said: tuple[Said, ...]
    right_names: frozenset[str]
    alike_names: frozenset[str] = frozenset()
    failure: str = ""

    @property
    def serious(self) -> tuple[Said, ...]:
        """Findings of warn or worse, in the tool's order."""
        return tuple(s for s in self.said if s.serious)

    @property
    def counted(self) -> tuple[Said, ...]:
        """Those that may name the fault: where information is due, information counts."""
        return self.said if self.truth.expected == "info" else self.serious

    @property
    def right_first(self) -> bool:
        """Whether the first of them is right."""
        return bool(self.counted) and self.counted[0].name in self.right_names

    @property
    def alike_first(self) -> bool:
        """Whether the first of them is right, or right for a fault that the log cannot tell from this one."""
        return bool(self.counted) and self.counted[0].name in self.right_names | self.alike_names

    @property
    def right(self) -> Said | None:
        """The first that is right."""
        return next((s for s in self.counted if s.name in self.right_names), None)

    @property
    def false_alarm(self) -> bool:
        """Whether it warns where no warning is due."""
        if self.truth.expected == "faint":
            return bool(self.serious) and not self.right_first
        return bool(self.serious) and self.truth.expected in ("info", "none")

    @property
    def onset_error(self) -> float | None:
        """Share of the run between true and told onset. A fault that is not named costs the whole run.

        ``None`` where the truth has no onset.
        """
        if not self.truth.onset:
            return None
        if self.right is None or self.right.onset is None:
            return 1.0
        return min(1.0, abs(self.right.onset - self.truth.onset) / self.truth.steps)


def names(path: Path) -> dict[str, dict[str, frozenset[str]]]:
    """By tool and fault, the tool's names that are right."""
    found = tomllib.loads(path.read_text())
    found.pop("alike")
    return {tool: {fault: frozenset(right) for fault, right in faults.items()} for tool, faults in found.items()}


def alike(path: Path) -> dict[str, frozenset[str]]:
    """By fault, the faults whose logs look the same, itself among them."""
    groups: list[list[str]] = tomllib.loads(path.read_text())["alike"]
    return {fault: frozenset(group) for group in groups for fault in group}


def labelled(directories: Iterable[Path]) -> list[Truth]:
    """Every labelled run below the directories, by name."""
    return [Truth.read(path.parent) for d in directories for path in sorted(d.glob("*/truth.json"))]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over the verdicts of one tool."""

    faulty: int
    right_first: int
    alike_first: int
    right_anywhere: int
    silent: int
    onset_error_median: float
    onset_error_mean: float
    harmless: int
    harmless_warned: int
    clean: int
    clean_warned: int
    failed: int


def score(verdicts: Sequence[Verdict]) -> Score:
    """``faulty`` are runs where a finding is due, ``harmless`` those where at most information is.

    A faint fault may be named or not, but not mistaken for another. A run whose signals the log does not have counts
    nowhere.
    """
    faulty = [v for v in verdicts if v.truth.fault and v.truth.expected == "finding"]
    harmless = [v for v in verdicts if v.truth.fault and v.truth.expected in ("info", "faint", "none")]
    clean = [v for v in verdicts if not v.truth.fault]
    errors = [v.onset_error for v in faulty if v.onset_error is not None] or [float("nan")]
    return Score(
        faulty=len(faulty),
        right_first=sum(v.right_first for v in faulty),
        alike_first=sum(v.alike_first for v in faulty),
        right_anywhere=sum(v.right is not None for v in faulty),
        silent=sum(not v.serious for v in faulty),
        onset_error_median=median(errors),
        onset_error_mean=fmean(errors),
        harmless=len(harmless),
        harmless_warned=sum(v.false_alarm for v in harmless),
        clean=len(clean),
        clean_warned=sum(v.false_alarm for v in clean),
        failed=sum(bool(v.failure) for v in verdicts),
    )

"""What a detector says: a symptom in one layer, its likely cause in another, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from posttrain.signals.severity import Severity

__all__ = ["Candidate", "Finding", "Observation", "Severity", "Verdict"]


class Verdict(StrEnum):
    """What the log says about one candidate cause."""

    SUPPORTED = "supported"
    RULED_OUT = "ruled out"
    UNKNOWN = "cannot be judged"


@dataclass(frozen=True, slots=True)
class Observation:
    """One piece of evidence: a value of a signal at a step, and what it shows."""

    signal: str
    step: int
    value: float
    shows: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One line of a differential diagnosis. ``log_this`` names the signals that would decide an unknown one."""

    cause: str
    verdict: Verdict
    reason: str
    log_this: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, or worth knowing.

    ``symptom`` and ``cause`` are names in the registries of this package, which give their layers, the check that
    confirms the cause and the remedy. ``confidence`` (0 to 1) is in the cause, not in the symptom.
    ``onset_step`` is the first step of the pattern; ``last_step`` the last, ``None`` while it goes on.
    ``summary`` is one sentence with the numbers.
    """

    detector: str
    symptom: str
    cause: str
    severity: Severity
    confidence: float
    summary: str
    onset_step: int
    last_step: int | None = None
    evidence: tuple[Observation, ...] = ()
    differential: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"{self.detector}: confidence must lie in [0, 1], got {self.confidence}")

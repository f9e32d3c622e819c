"""Findings and detectors made up for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.faultmap.detector import Detector, Judge
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity, Verdict
from posttrain.faultmap.history import History


def finding(
    detector: str = "alpha",
    onset: int = 10,
    severity: Severity = Severity.WARN,
    *,
    symptom: str = "entropy_collapse",
    cause: str = "no_exploration",
    confidence: float = 0.6,
    summary: str = "Entropy falls from 1.2 to 0.1 within 8 steps.",
    last: int | None = None,
) -> Finding:
    return Finding(
        detector,
        symptom,
        cause,
        severity,
        confidence,
        summary,
        onset,
        last,
        (Observation("policy/entropy", onset, 0.1, "a tenth of its level"),),
        (
            Candidate(cause, Verdict.SUPPORTED, "the reward still rises"),
            Candidate("reward_hacked", Verdict.UNKNOWN, "no held-out value", ("evaluation/{environment}/pass@{k}",)),
            Candidate("data_too_old", Verdict.RULED_OUT, "every token is of the newest version"),
        ),
    )


def detector(
    name: str = "alpha",
    findings: Sequence[Finding] = (),
    *,
    judge: Judge | None = None,
    symptom: str = "entropy_collapse",
    needs: tuple[tuple[str, ...], ...] = (("policy/entropy",),),
    sharpened_by: tuple[str, ...] = (),
    yields_to: tuple[str, ...] = (),
    silent_beside: tuple[str, ...] = (),
) -> Detector:
    def say(_: History) -> Sequence[Finding]:
        return findings

    pattern = f"whatever {name} looks for"
    return Detector(name, symptom, name, pattern, needs, judge or say, sharpened_by, yields_to, silent_beside)

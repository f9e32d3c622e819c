"""A detector: a small function from a history to findings, with what it needs to judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.faultmap.finding import Finding
from posttrain.faultmap.history import History

Judge = Callable[[History], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class Detector:
    """One joint pattern.

    Each entry of ``needs`` is a tuple of alternative signals, at least one of which must be in the log, else the
    detector cannot judge. ``sharpened_by`` are signals that make the cause more certain. ``pattern`` states
    in words what is looked for, thresholds included. Where a detector named in ``yields_to`` has found
    something that began no later than ``slack`` of the run's steps after this one, this finding is its consequence.
    Where one named in ``silent_beside`` warns at any step, this detector says nothing: that one says why.
    """

    name: str
    symptom: str
    title: str
    pattern: str
    needs: tuple[tuple[str, ...], ...]
    judge: Judge
    sharpened_by: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    silent_beside: tuple[str, ...] = ()

    def missing(self, history: History) -> list[tuple[str, ...]]:
        """The needs that the log does not meet."""
        return [need for need in self.needs if not any(history.has(name) for name in need)]

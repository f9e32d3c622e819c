"""What is different between two diagnoses of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from posttrain.faultmap.finding import Finding

Key = tuple[str, str, str]


class Event(StrEnum):
    """What happened to a finding between two looks."""

    NEW = "new"
    WORSE = "worse"
    MILDER = "milder"
    OVER = "over"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change:
    """An event and the finding as it is now, or as it was last where it is gone."""

    event: Event
    finding: Finding


def key_of(finding: Finding) -> Key:
    """What makes two findings of two moments the same one: detector, symptom and cause."""
    return finding.detector, finding.symptom, finding.cause


def changes(before: Iterable[Finding], after: Iterable[Finding]) -> list[Change]:
    """New, worse, milder and over in the order of ``after``; then what is gone. Other wording is no change."""
    old, new = {key_of(f): f for f in before}, {key_of(f): f for f in after}
    return [*_seen(old, new), *(Change(Event.GONE, f) for key, f in old.items() if key not in new)]


def _seen(old: dict[Key, Finding], new: dict[Key, Finding]) -> Iterator[Change]:
    for key, finding in new.items():
        earlier = old.get(key)
        if earlier is None:
            yield Change(Event.NEW, finding)
        elif earlier.severity != finding.severity:
            yield Change(Event.WORSE if finding.severity > earlier.severity else Event.MILDER, finding)
        elif earlier.last_step is None and finding.last_step is not None:
            yield Change(Event.OVER, finding)

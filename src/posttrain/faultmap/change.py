"""What is different between two diagnoses of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from posttrain.faultmap.finding import Finding

Key = tuple[str, str, str, int]


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


def by_key(findings: Iterable[Finding]) -> dict[Key, Finding]:
    """Findings by what makes them the same at two moments: detector, symptom, cause, and the how manieth by onset."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found: dict[Key, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.onset_step):
        name = finding.detector, finding.symptom, finding.cause
        found[*name, seen[name]] = finding
        seen[name] += 1
    return found


def changes(before: Iterable[Finding], after: Iterable[Finding]) -> list[tuple[Key, Change]]:
    """New, worse, milder and over by onset; then what is gone. Other wording is no change."""
    old, new = by_key(before), by_key(after)
    gone = ((key, Change(Event.GONE, finding)) for key, finding in old.items() if key not in new)
    return [*_seen(old, new), *gone]


def _seen(old: dict[Key, Finding], new: dict[Key, Finding]) -> Iterator[tuple[Key, Change]]:
    for key, finding in new.items():
        earlier = old.get(key)
        if earlier is None:
            yield key, Change(Event.NEW, finding)
        elif earlier.severity != finding.severity:
            yield key, Change(Event.WORSE if finding.severity > earlier.severity else Event.MILDER, finding)
        elif earlier.last_step is None and finding.last_step is not None:
            yield key, Change(Event.OVER, finding)

"""The rule of the lineage: every group drawn is consumed exactly once, or discarded with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from posttrain.errors import PosttrainError

_TOLD = 5


class EventKind(StrEnum):
    """What can happen to a group (the first six) or to the run."""

    DRAWN = "drawn"
    SUBMITTED = "submitted"
    FINISHED = "finished"
    GRADED = "graded"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    STEP = "step"
    CHECKPOINT = "checkpoint"


class LineageError(PosttrainError):
    """The journal of a run that has ended breaks the rule: nobody knows what its weights were trained on."""

    def __init__(self, run: Path, broken: Sequence[str]) -> None:
        """``broken`` holds a sentence for each violation; the first five are told."""
        more = f"; and {len(broken) - _TOLD} more" if len(broken) > _TOLD else ""
        super().__init__(
            f"the lineage of {run} is violated: {'; '.join(broken[:_TOLD])}{more}. The model is kept, but it is not "
            f"what the settings describe; every event is in {run / 'journal.sqlite'}. Start a new run"
        )


@dataclass(frozen=True, slots=True)
class LineageEvent:
    """One event that is not undone. ``group_id`` is empty for events of the run."""

    kind: EventKind
    group_id: str
    ordinal: int | None
    step: int | None
    policy_version: int | None
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """One event of a group; ``undone_by`` is the attempt that rolled it back. ``time`` is seconds since the epoch."""

    kind: EventKind
    attempt: int
    time: float
    step: int | None
    policy_version: int | None
    reason: str
    undone_by: int | None


@dataclass(frozen=True, slots=True)
class GroupFate:
    """What became of a group: consumed in a step, discarded for a reason, or (neither) still open."""

    group_id: str
    attempt: int
    consumed_step: int | None
    discard_reason: str


@dataclass(slots=True)
class _Life:
    drawn: int = 0
    attempt: int = 0
    consumed: list[int | None] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)


def fates(events: Iterable[LineageEvent]) -> list[GroupFate]:
    """Fate of every group, in order of its first event."""
    return [
        GroupFate(
            group_id,
            life.attempt,
            life.consumed[0] if life.consumed else None,
            life.discarded[0] if life.discarded else "",
        )
        for group_id, life in _lives(list(events)).items()
    ]


def violations(events: Iterable[LineageEvent], *, final: bool) -> list[str]:
    """Everything in the events that breaks the rule, one sentence each; empty if nothing does."""
    listed = list(events)
    return [*_group_violations(_lives(listed), final), *_order_violations(listed)]


def _lives(events: list[LineageEvent]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    for event in events:
        if not event.group_id:
            continue
        life = lives.setdefault(event.group_id, _Life())
        life.attempt = event.attempt
        if event.kind is EventKind.DRAWN:
            life.drawn += 1
        elif event.kind is EventKind.CONSUMED:
            life.consumed.append(event.step)
        elif event.kind is EventKind.DISCARDED:
            life.discarded.append(event.reason)
    return lives


def _group_violations(lives: dict[str, _Life], final: bool) -> list[str]:
    found: list[str] = []
    for group_id, life in lives.items():
        if life.drawn != 1:
            found.append(f"{group_id} was drawn {life.drawn} times")
        if len(life.consumed) > 1:
            found.append(f"{group_id} was consumed {len(life.consumed)} times, in steps {life.consumed}")
        if life.consumed and life.discarded:
            found.append(f"{group_id} was consumed in step {life.consumed[0]} and discarded ({life.discarded[0]})")
        if len(life.discarded) > 1:
            found.append(f"{group_id} was discarded {len(life.discarded)} times")
        if not all(life.discarded):
            found.append(f"{group_id} was discarded without a reason")
        if final and not life.consumed and not life.discarded:
            found.append(f"{group_id} was drawn and neither consumed nor discarded")
    return found


def _order_violations(events: list[LineageEvent]) -> list[str]:
    found: list[str] = []
    ordinals = [e.ordinal for e in events if e.kind is EventKind.DRAWN and e.ordinal is not None]
    missing = sorted(set(range(len(ordinals))) - set(ordinals))
    if missing:
        found.append(f"{len(missing)} draws are missing or repeated, the first is draw {missing[0]}")
    steps = [e.step for e in events if e.kind is EventKind.STEP]
    if steps != list(range(1, len(steps) + 1)):
        found.append(f"steps do not run 1, 2, 3...: {steps[:20]}")
    versions = [e.policy_version for e in events if e.kind is EventKind.STEP and e.policy_version is not None]
    for before, after in itertools.pairwise(versions):
        if after < before:
            found.append(f"the policy version goes back from {before} to {after}")
    done = {e.step for e in events if e.kind is EventKind.STEP}
    unfinished = sorted({e.step for e in events if e.kind is EventKind.CONSUMED and e.step is not None} - done)
    if unfinished:
        found.append(f"groups are consumed in steps that were not finished: {unfinished}")
    return found

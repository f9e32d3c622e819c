"""The life of a group as the schedule sees it, and the settings of the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from posttrain.errors import InputError


class ScheduleError(RuntimeError):
    """An impossible transition: an unknown or closed group, a version that goes back, counts that do not add up."""


class Stage(StrEnum):
    """Where a live group is. Consumed and discarded groups are closed and have no stage."""

    IN_FLIGHT = "in_flight"
    BEING_SCORED = "being_scored"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """How far sampling may run ahead of training.

    ``batch_groups`` groups make one batch. ``depth`` is typical staleness: how many batches may be open
    beyond the one due next. ``limit`` is hard staleness, in policy versions: a group whose oldest token is
    older than that when it could be trained is discarded. Depth 0 and limit 0 is synchronous running.
    """

    batch_groups: int
    depth: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        if self.batch_groups < 1:
            raise InputError("rollout.prompts_per_step", self.batch_groups, "a batch needs a group", "Use 1 or more")
        if self.depth < 0:
            raise InputError("schedule.depth", self.depth, "cannot be negative", "Use 0 for synchronous running")
        if self.limit < self.depth:
            raise InputError(
                "schedule.limit",
                self.limit,
                f"is below schedule.depth = {self.depth}, so typical groups would be discarded",
                f"Use {self.depth} or more",
            )


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """One open group: ``ordinal`` is its place in the order of submission, ``oldest_version`` bounds its tokens."""

    group_id: str
    ordinal: int
    stage: Stage
    oldest_version: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """A group closed without being trained, and why."""

    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Groups by state, in groups. The first three are now; the last three run since the start."""

    in_flight: int
    being_scored: int
    ready: int
    submitted: int
    consumed: int
    discarded: int

    @property
    def outstanding(self) -> int:
        """Groups neither consumed nor discarded."""
        return self.in_flight + self.being_scored + self.ready

    def signals(self) -> dict[str, float]:
        """Values by signal name, for the metrics file."""
        return {
            "schedule/in_flight": float(self.in_flight),
            "schedule/being_scored": float(self.being_scored),
            "schedule/ready": float(self.ready),
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a schedule knows except the ids of closed groups (the journal has those).

    ``in_training`` is the staleness of each group of the batch in training.
    """

    version: int
    submitted: int
    consumed: int
    discarded: int
    in_training: tuple[int, ...]
    live: tuple[LiveGroup, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "version": self.version,
            "submitted": self.submitted,
            "consumed": self.consumed,
            "discarded": self.discarded,
            "in_training": list(self.in_training),
            "live": [[g.group_id, g.ordinal, g.stage.value, g.oldest_version] for g in self.live],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Inverse of ``to_json``. Raises ScheduleError if the data is not one."""
        try:
            live = tuple(LiveGroup(str(g), int(o), Stage(s), int(v)) for g, o, s, v in data["live"])
            numbers = [int(data[name]) for name in ("version", "submitted", "consumed", "discarded")]
            in_training = tuple(int(age) for age in data["in_training"])
        except (KeyError, TypeError, ValueError) as error:
            raise ScheduleError(f"not a schedule snapshot: {error!r}") from error
        return cls(*numbers, in_training=in_training, live=live)

"""The schedule: which groups may start, which are trained next, which are too old.

A state machine without clock, files or tensors; the training loop and a simulator drive the same object.

    submitted ──> in flight ──finished──> being scored ──graded──> ready ──select──> consumed
        any live stage ──discard / evict──> discarded
"""

from __future__ import annotations

from collections.abc import Iterable

from posttrain.schedule.state import Counts, Discarded, LiveGroup, ScheduleError, SchedulePlan, Snapshot, Stage


class Schedule:
    """Admits, tracks, selects and evicts groups.

    Staleness bound: when a group is submitted, at most ``(depth + 1) * batch_groups - 1`` others are open
    or in training; taken in order of submission it is therefore trained at most ``depth`` batches later.
    A group overtaken by faster ones can get older; ``limit`` bounds that.
    """

    def __init__(self, plan: SchedulePlan, version: int = 0) -> None:
        self.plan = plan
        self._version = version
        self._live: dict[str, LiveGroup] = {}
        self._closed: set[str] = set()
        self._stage_counts = dict.fromkeys(Stage, 0)
        self._submitted = 0
        self._consumed = 0
        self._discarded = 0
        self._in_training: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        """The trainer's policy version: that of the last ``trained`` call."""
        return self._version

    @property
    def counts(self) -> Counts:
        """Groups by state."""
        stages = self._stage_counts
        return Counts(
            in_flight=stages[Stage.IN_FLIGHT],
            being_scored=stages[Stage.BEING_SCORED],
            ready=stages[Stage.READY],
            submitted=self._submitted,
            consumed=self._consumed,
            discarded=self._discarded,
        )

    @property
    def live(self) -> tuple[LiveGroup, ...]:
        """Open groups in order of submission."""
        return tuple(self._live.values())

    @property
    def training_staleness(self) -> tuple[int, ...]:
        """Staleness, in policy versions, of each group of the batch in training; empty between batches."""
        return self._in_training

    def admit(self, policy_version: int) -> int:
        """Number of groups that may start now on an engine that holds ``policy_version``.

        A selected batch counts until ``trained`` is called, so with depth 0 nothing starts while the
        trainer works. Zero too if the engine's weights are already older than the limit allows.
        Raises ScheduleError if the engine claims a version the trainer has not reached.
        """
        self._check_engine_version(policy_version)
        if self._version - policy_version > self.plan.limit:
            return 0
        capacity = (self.plan.depth + 1) * self.plan.batch_groups
        return max(0, capacity - self.counts.outstanding - len(self._in_training))

    def submitted(self, group_id: str, policy_version: int) -> None:
        """A group has started on the engine. Raises ScheduleError if it is known already or was not admitted."""
        if group_id in self._live or group_id in self._closed:
            raise ScheduleError(f"{group_id} was submitted before")
        if self.admit(policy_version) < 1:
            raise ScheduleError(f"{group_id} was not admitted: {self.counts}, version {self._version}")
        self._live[group_id] = LiveGroup(group_id, self._submitted, Stage.IN_FLIGHT, policy_version)
        self._stage_counts[Stage.IN_FLIGHT] += 1
        self._submitted += 1
        self._check()

    def finished(self, group_id: str, oldest_version: int) -> None:
        """All members have ended; ``oldest_version`` is the smallest policy version of any sampled token."""
        group = self._expect(group_id, Stage.IN_FLIGHT)
        if oldest_version < group.oldest_version:
            raise ScheduleError(
                f"{group_id} has a token of version {oldest_version} but started at {group.oldest_version}"
            )
        self._check_engine_version(oldest_version)
        self._move(group, Stage.BEING_SCORED, oldest_version)

    def graded(self, group_id: str) -> None:
        """The group is graded and may be trained. One that may not is discarded instead, with the reason."""
        group = self._expect(group_id, Stage.BEING_SCORED)
        self._move(group, Stage.READY, group.oldest_version)

    def select(self, count: int, version: int) -> list[str]:
        """Take the ``count`` first submitted ready groups for the batch that starts at trainer ``version``.

        Groups over the staleness limit are never taken. Returns nothing if fewer are ready (wait, or ask
        for less). The taken groups are consumed. Raises ScheduleError if a batch is still in training.
        """
        if count < 1:
            raise ScheduleError(f"a batch needs at least one group, got {count}")
        if version != self._version:
            raise ScheduleError(f"batch selected for version {version}, the trainer is at {self._version}")
        if self._in_training:
            raise ScheduleError(f"{len(self._in_training)} groups are still in training")
        fresh = [g for g in self._live.values() if g.stage is Stage.READY and not self._is_stale(g, version)]
        if len(fresh) < count:
            return []
        chosen = fresh[:count]
        for group in chosen:
            self._close(group.group_id)
        self._consumed += count
        self._in_training = tuple(version - group.oldest_version for group in chosen)
        self._check()
        return [group.group_id for group in chosen]

    def trained(self, version: int) -> None:
        """The selected batch has been used; the trainer is at ``version``, which may not go back.

        A batch that was skipped as a whole leaves the version where it was.
        """
        if version < self._version:
            raise ScheduleError(f"the trainer's version goes back from {self._version} to {version}")
        self._version = version
        self._in_training = ()

    def discard(self, group_id: str, reason: str) -> None:
        """Close a live group untrained. ``reason`` is required: nothing leaves silently."""
        if not reason:
            raise ScheduleError(f"{group_id} is discarded without a reason")
        if group_id not in self._live:
            raise ScheduleError(f"{group_id} cannot be discarded: it is {self._absence(group_id)}")
        self._close(group_id)
        self._discarded += 1
        self._check()

    def evict(self, version: int) -> list[Discarded]:
        """Discard every live group too old for a batch that starts at trainer ``version``.

        Those in flight must be aborted on the engine by the caller.
        """
        stale = [g for g in self._live.values() if self._is_stale(g, version)]
        evicted = [
            Discarded(g.group_id, f"stale: {version - g.oldest_version} versions old, limit {self.plan.limit}")
            for g in stale
        ]
        for entry in evicted:
            self.discard(entry.group_id, entry.reason)
        return evicted

    def staleness(self, group_id: str) -> int:
        """Trainer's version minus the oldest token's version of a live group, in policy versions."""
        if group_id not in self._live:
            raise ScheduleError(f"{group_id} is {self._absence(group_id)}")
        return self._version - self._live[group_id].oldest_version

    def snapshot(self) -> Snapshot:
        """State to save with a checkpoint."""
        return Snapshot(
            version=self._version,
            submitted=self._submitted,
            consumed=self._consumed,
            discarded=self._discarded,
            in_training=self._in_training,
            live=self.live,
        )

    @classmethod
    def restore(cls, plan: SchedulePlan, snapshot: Snapshot, closed: Iterable[str] = ()) -> Schedule:
        """Continue from a snapshot; ``closed`` are ids already consumed or discarded, so that none comes twice."""
        schedule = cls(plan, snapshot.version)
        schedule._live = {group.group_id: group for group in snapshot.live}
        schedule._closed = set(closed)
        for group in snapshot.live:
            schedule._stage_counts[group.stage] += 1
        schedule._submitted = snapshot.submitted
        schedule._consumed = snapshot.consumed
        schedule._discarded = snapshot.discarded
        schedule._in_training = snapshot.in_training
        schedule._check()
        return schedule

    def _is_stale(self, group: LiveGroup, version: int) -> bool:
        return version - group.oldest_version > self.plan.limit

    def _check_engine_version(self, policy_version: int) -> None:
        if policy_version > self._version:
            raise ScheduleError(f"engine version {policy_version} is ahead of the trainer's {self._version}")

    def _absence(self, group_id: str) -> str:
        return "closed already" if group_id in self._closed else "unknown"

    def _expect(self, group_id: str, stage: Stage) -> LiveGroup:
        group = self._live.get(group_id)
        if group is None:
            raise ScheduleError(f"{group_id} is {self._absence(group_id)}")
        if group.stage is not stage:
            raise ScheduleError(f"{group_id} is {group.stage}, expected {stage}")
        return group

    def _move(self, group: LiveGroup, stage: Stage, oldest_version: int) -> None:
        self._stage_counts[group.stage] -= 1
        self._stage_counts[stage] += 1
        self._live[group.group_id] = LiveGroup(group.group_id, group.ordinal, stage, oldest_version)
        self._check()

    def _close(self, group_id: str) -> None:
        group = self._live.pop(group_id)
        self._stage_counts[group.stage] -= 1
        self._closed.add(group_id)

    def _check(self) -> None:
        counts = self.counts
        if not (counts.outstanding == counts.submitted - counts.consumed - counts.discarded == len(self._live)):
            raise ScheduleError(f"groups do not add up: {counts}, {len(self._live)} live")
        if min(counts.in_flight, counts.being_scored, counts.ready) < 0:
            raise ScheduleError(f"a count went below zero: {counts}")

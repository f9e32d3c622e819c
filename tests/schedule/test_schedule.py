"""The schedule: admission, staleness bound, selection order, eviction, counts; driven at random and by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from posttrain.errors import InputError
from posttrain.schedule import Schedule, ScheduleError, SchedulePlan, Snapshot, Stage


def _to_ready(schedule: Schedule, group_id: str, version: int) -> None:
    schedule.submitted(group_id, version)
    schedule.finished(group_id, version)
    schedule.graded(group_id)


def test_synchronous_running_starts_nothing_while_a_batch_is_in_training() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=2))
    assert schedule.admit(0) == 2
    for name in "ab":
        _to_ready(schedule, name, 0)
    assert schedule.admit(0) == 0
    assert schedule.select(2, 0) == ["a", "b"]
    assert schedule.admit(0) == 0, "samples started now would be one version old when trained"
    schedule.trained(1)
    assert schedule.admit(1) == 2
    assert schedule.admit(0) == 0, "an engine that missed the update may not sample for the next batch"


def test_a_discarded_group_makes_room_for_a_refill() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=2))
    schedule.submitted("a", 0)
    schedule.submitted("b", 0)
    schedule.finished("a", 0)
    schedule.discard("a", "all members have the same reward")
    assert schedule.admit(0) == 1
    assert schedule.counts.discarded == 1


def test_selection_is_in_order_of_submission_not_of_finishing_and_all_or_nothing() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=3, depth=1, limit=2))
    for name in "abc":
        schedule.submitted(name, 0)
    for name in "ca":
        schedule.finished(name, 0)
        schedule.graded(name)
    assert schedule.select(3, 0) == []
    assert schedule.counts.ready == 2
    schedule.finished("b", 0)
    schedule.graded("b")
    assert schedule.select(2, 0) == ["a", "b"]


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=1, depth=2, limit=2), version=0)
    schedule.submitted("slow", 0)
    for version in range(3):
        _to_ready(schedule, f"fast{version}", version)
        schedule.select(1, version)
        schedule.trained(version + 1)
    with pytest.raises(ScheduleError, match="ahead"):
        schedule.finished("slow", 4)
    schedule.finished("slow", 1)
    schedule.graded("slow")
    assert schedule.staleness("slow") == 2
    assert schedule.evict(3) == []
    _to_ready(schedule, "next", 3)
    assert schedule.select(1, 3) == ["slow"]
    assert schedule.training_staleness == (2,)
    schedule.trained(4)
    assert schedule.training_staleness == ()


def test_eviction_takes_every_stage_and_names_the_age() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=3, depth=1, limit=1))
    schedule.submitted("flying", 0)
    schedule.submitted("scored", 0)
    schedule.finished("scored", 0)
    for version in range(2):
        _to_ready(schedule, f"fast{version}", version)
        schedule.select(1, version)
        schedule.trained(version + 1)
    evicted = schedule.evict(2)
    assert [e.group_id for e in evicted] == ["flying", "scored"]
    assert evicted[0].reason == "stale: 2 versions old, limit 1"
    assert schedule.counts.outstanding == 0


def test_a_stale_group_is_not_selected_even_before_it_is_evicted() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=1, depth=1, limit=1))
    _to_ready(schedule, "a", 0)
    schedule.trained(2)
    assert schedule.select(1, 2) == []


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda s: s.submitted("a", 0), "before"),
        (lambda s: s.finished("x", 0), "unknown"),
        (lambda s: s.graded("a"), "expected being_scored"),
        (lambda s: s.discard("a", ""), "without a reason"),
        (lambda s: s.discard("done", "late"), "closed already"),
        (lambda s: s.trained(-1), "goes back"),
        (lambda s: s.select(1, 1), "trainer is at 0"),
        (lambda s: s.submitted("done", 0), "before"),
        (lambda s: s.submitted("c", 1), "ahead"),
    ],
)
def test_impossible_transitions_are_refused(action, match: str) -> None:
    schedule = Schedule(SchedulePlan(batch_groups=2))
    schedule.submitted("a", 0)
    schedule.submitted("done", 0)
    schedule.discard("done", "test")
    with pytest.raises(ScheduleError, match=match):
        action(schedule)


def test_more_than_admitted_is_refused() -> None:
    schedule = Schedule(SchedulePlan(batch_groups=1))
    schedule.submitted("a", 0)
    with pytest.raises(ScheduleError, match="not admitted"):
        schedule.submitted("b", 0)


def test_a_limit_below_the_depth_is_refused() -> None:
    with pytest.raises(InputError, match=r"schedule\.limit = 1"):
        SchedulePlan(batch_groups=1, depth=2, limit=1)


def test_snapshot_continues_the_same_schedule() -> None:
    plan = SchedulePlan(batch_groups=2, depth=1, limit=3)
    schedule = Schedule(plan)
    _to_ready(schedule, "a", 0)
    schedule.submitted("b", 0)
    schedule.submitted("c", 0)
    schedule.discard("c", "test")
    text = json.dumps(schedule.snapshot().to_json())
    restored = Schedule.restore(plan, Snapshot.from_json(json.loads(text)), closed=["c"])
    assert restored.snapshot() == schedule.snapshot()
    assert restored.admit(0) == schedule.admit(0) == 2
    with pytest.raises(ScheduleError, match="before"):
        restored.submitted("c", 0)
    assert restored.select(1, 0) == ["a"]


def test_a_snapshot_whose_counts_do_not_add_up_is_refused() -> None:
    broken = Snapshot(version=0, submitted=3, consumed=1, discarded=0, in_training=(), live=())
    with pytest.raises(ScheduleError, match="do not add up"):
        Schedule.restore(SchedulePlan(batch_groups=1), broken)
    with pytest.raises(ScheduleError, match="not a schedule snapshot"):
        Snapshot.from_json({"version": 0})


class RandomRun(RuleBasedStateMachine):
    """Drive the schedule in any order an asynchronous run could, against a plain model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = SchedulePlan(batch_groups=3, depth=2, limit=3)
        self.schedule = Schedule(self.plan)
        self.stage: dict[str, Stage] = {}
        self.birth: dict[str, int] = {}
        self.consumed: list[str] = []
        self.discarded: list[str] = []
        self.training = False

    @rule(lag=st.integers(0, 4), count=st.integers(1, 12))
    def submit(self, lag: int, count: int) -> None:
        version = max(0, self.schedule.version - lag)
        for _ in range(min(count, self.schedule.admit(version))):
            name = f"g{len(self.birth)}"
            self.schedule.submitted(name, version)
            self.stage[name] = Stage.IN_FLIGHT
            self.birth[name] = version

    def _of(self, stage: Stage) -> list[str]:
        return [g for g, s in self.stage.items() if s is stage]

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if names := self._of(Stage.IN_FLIGHT):
            name = data.draw(st.sampled_from(names))
            self.schedule.finished(name, self.birth[name])
            self.stage[name] = Stage.BEING_SCORED

    @rule(data=st.data())
    def grade(self, data: st.DataObject) -> None:
        if names := self._of(Stage.BEING_SCORED):
            name = data.draw(st.sampled_from(names))
            self.schedule.graded(name)
            self.stage[name] = Stage.READY

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.stage:
            name = data.draw(st.sampled_from(sorted(self.stage)))
            self.schedule.discard(name, "random")
            del self.stage[name]
            self.discarded.append(name)

    @precondition(lambda self: not self.training)
    @rule(count=st.integers(1, 4))
    def select(self, count: int) -> None:
        version = self.schedule.version
        chosen = self.schedule.select(count, version)
        fresh = [g for g in self._of(Stage.READY) if version - self.birth[g] <= self.plan.limit]
        fresh.sort(key=lambda g: int(g[1:]))
        assert chosen == (fresh[:count] if len(fresh) >= count else [])
        for name in chosen:
            del self.stage[name]
            self.consumed.append(name)
        self.training = bool(chosen)

    @rule(updates=st.integers(0, 2))
    def train(self, updates: int) -> None:
        self.schedule.trained(self.schedule.version + updates)
        self.training = False

    @rule()
    def evict(self) -> None:
        stale = {g for g in self.stage if self.schedule.version - self.birth[g] > self.plan.limit}
        assert {e.group_id for e in self.schedule.evict(self.schedule.version)} == stale
        for name in stale:
            del self.stage[name]
            self.discarded.append(name)

    @rule()
    def restart(self) -> None:
        snapshot = Snapshot.from_json(json.loads(json.dumps(self.schedule.snapshot().to_json())))
        self.schedule = Schedule.restore(self.plan, snapshot, closed=[*self.consumed, *self.discarded])

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        counts = self.schedule.counts
        assert counts.outstanding == counts.submitted - counts.consumed - counts.discarded
        assert counts.in_flight == len(self._of(Stage.IN_FLIGHT))
        assert counts.being_scored == len(self._of(Stage.BEING_SCORED))
        assert counts.ready == len(self._of(Stage.READY))
        assert len(set(self.consumed)) == len(self.consumed) == counts.consumed
        assert not set(self.consumed) & set(self.discarded)
        assert counts.outstanding <= (self.plan.depth + 1) * self.plan.batch_groups


TestRandomRun = RandomRun.TestCase
TestRandomRun.settings = settings(max_examples=80, stateful_step_count=40)


@pytest.mark.parametrize(("depth", "batch"), [(0, 4), (1, 4), (3, 2)])
def test_taken_in_order_staleness_never_exceeds_the_depth(depth: int, batch: int) -> None:
    schedule = Schedule(SchedulePlan(batch_groups=batch, depth=depth, limit=depth))
    ages: list[int] = []
    born: dict[str, int] = {}
    for step in range(12):
        for round_ in range(2):  # fill before and during training
            for _ in range(schedule.admit(schedule.version)):
                name = f"g{len(born)}"
                born[name] = schedule.version
                _to_ready(schedule, name, schedule.version)
            if round_ == 0:
                chosen = schedule.select(batch, step)
                assert len(chosen) == batch
                ages += [step - born[name] for name in chosen]
        schedule.trained(step + 1)
    assert max(ages) == depth

from __future__ import annotations

import math

import pytest

from posttrain.faultmap.phases import LANES, SHOWN_PAUSE, Phase, clock_of, coarsen, phases_of, waiting_of
from posttrain.rundir.metrics import MetricsRow


def row(step: int, time: float, /, **durations: float) -> MetricsRow:
    return MetricsRow(step, step, 1, time, "train", {f"time/{name}": seconds for name, seconds in durations.items()})


def test_phases_follow_one_another_and_end_when_the_row_was_written() -> None:
    phases = phases_of([row(1, 100.0, training=4.0, rollout=3.0, grading=1.0)])
    assert [(p.name, p.start, p.end) for p in phases] == [
        ("rollout", 92.0, 95.0),
        ("grading", 95.0, 96.0),
        ("training", 96.0, 100.0),
    ]


def test_a_step_longer_than_its_phases_begins_earlier() -> None:
    assert phases_of([row(1, 100.0, step=10.0, rollout=3.0)])[0].start == 90.0


def test_broken_durations_are_left_out() -> None:
    assert [p.name for p in phases_of([row(1, 9.0, step=math.nan, rollout=math.nan, training=2.0, sync=0.0)])] == [
        "training"
    ]


def test_whoever_does_not_work_waits_for_those_who_do() -> None:
    waiting = {w.lane: w for w in waiting_of(phases_of([row(1, 100.0, rollout=6.0, training=3.0, sync=1.0)]))}
    assert waiting["engine"].busy == pytest.approx(0.6)
    assert waiting["engine"].waits_for == (("training", pytest.approx(0.3)), ("sync", pytest.approx(0.1)))
    for w in waiting.values():
        assert w.busy + sum(share for _, share in w.waits_for) == pytest.approx(1.0)


def test_the_clock_cuts_a_night_between_two_attempts() -> None:
    clock = clock_of([Phase("rollout", 0, 10, 1), Phase("rollout", 50_000, 50_010, 2)], [])
    assert clock(5) == 5
    assert clock(50_003) == pytest.approx(10 + SHOWN_PAUSE + 3)
    assert clock.total == pytest.approx(20 + SHOWN_PAUSE)


def test_the_clock_keeps_a_long_phase_whole() -> None:
    assert clock_of([Phase("training", 0, 500, 1)], [0.0, 1.0]).total == pytest.approx(500.5)


def test_coarse_phases_are_few_and_show_the_longest() -> None:
    phases = [Phase("rollout" if i % 10 else "evaluation", i, i + 1, i) for i in range(5000)]
    coarse = coarsen(phases, 100)
    assert len(coarse) <= 100 * len(LANES)
    assert {p.name for p in coarse} == {"rollout"}
    assert min(p.start for p in coarse) == 0
    assert max(p.end for p in coarse) <= 5000

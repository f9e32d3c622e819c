"""Attempts that cannot be graded."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from series import history

from posttrain.faultmap.detectors.grader_failing import DETECTOR
from posttrain.faultmap.finding import Severity


def shares(onset: int, share: float, n: int = 40, size: int = 64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(np.arange(n) < onset, 0, rng.binomial(size, share, n)) / size


@pytest.mark.parametrize("onset", [0, 10, 25])
@pytest.mark.parametrize(
    ("share", "severity"), [(0.08, Severity.WARN), (0.6, Severity.CRITICAL), (1.0, Severity.CRITICAL)]
)
def test_a_share_that_stays_is_named(onset: int, share: float, severity: Severity) -> None:
    watched = watch(DETECTOR, history({"reward/ungradable_share": shares(onset, share)}))
    first = watched.first()
    assert first is not None
    assert onset < first <= onset + 4
    (finding,) = watched.last
    assert (finding.cause, finding.severity) == ("grader_failing", severity)
    assert abs(finding.onset_step - (onset + 1)) <= 2


def test_twenty_of_twenty_refused_is_critical_at_once() -> None:
    (finding,) = DETECTOR.judge(history({"reward/ungradable": [0.0], "reward/failed": [20.0], "reward/graded": [0.0]}))
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize("seed", range(6))
def test_rare_single_failures_are_tolerated(seed: int) -> None:
    assert watch(DETECTOR, history({"reward/ungradable_share": shares(0, 0.002, 120, 64, seed)})).first() is None


def test_one_bad_step_is_forgotten() -> None:
    values = np.zeros(40)
    values[12] = 0.3
    watched = watch(DETECTOR, history({"reward/ungradable_share": values}))
    assert watched.first() is None


def test_timeouts_in_most_steps_are_named() -> None:
    counts = np.where(np.arange(40) < 20, 0.0, 3.0)
    watched = watch(DETECTOR, history({"reward/grader_timeouts": counts}))
    first = watched.first()
    assert first is not None
    assert 20 < first <= 24
    assert watched.last[0].cause == "grader_failing"


def test_a_restart_now_and_then_is_not() -> None:
    counts = np.zeros(60)
    counts[::10] = 1.0
    assert watch(DETECTOR, history({"reward/grader_restarts": counts})).first() is None

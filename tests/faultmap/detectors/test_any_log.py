"""No log makes a detector fail: short, constant, huge, tiny, with values that are not finite, with gaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from series import history

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.history import Course, History

SIGNALS = sorted(
    {name for d in DETECTORS for need in d.needs for name in need}
    | {name for d in DETECTORS for name in d.sharpened_by if "{" not in name}
    | {"reward/part/task/mean", "reward/part/format/mean", "evaluation/held/reward_mean", "policy/critic_loss"}
)
ODD = (0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))


@st.composite
def logs(draw: st.DrawFn) -> History:
    """Any signals, each a level with noise, a jump or a ramp, and odd values here and there."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 70))
    courses: dict[str, Course] = {}
    for name in draw(st.lists(st.sampled_from(SIGNALS), min_size=1, unique=True)):
        scale = draw(st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e12]))
        values = rng.normal(0.5, draw(st.sampled_from([0.0, 0.05, 1.0])), n)
        values[n // 2 :] += draw(st.sampled_from([0.0, 0.4, -0.4, 5.0]))
        for odd in draw(st.lists(st.sampled_from(ODD), max_size=2)):
            values[int(rng.integers(0, n))] = odd
        kept = rng.random(n) >= draw(st.sampled_from([0.0, 0.5]))
        steps = np.arange(1, n + 1, dtype=np.int64)
        courses[name] = Course(name, steps[kept], (scale * values)[kept])
    return History(history({}).framework, "any", courses)


@given(logs())
def test_no_log_makes_a_detector_fail(run: History) -> None:
    with np.errstate(all="ignore"):
        assert diagnose(run).failures == ()


@given(st.sampled_from(DETECTORS), st.integers(1, 5))
def test_the_first_points_of_a_log_are_too_few_for_a_warning(detector: Detector, points: int) -> None:
    calm = {name: np.full(points, 0.5) for name in SIGNALS if not name.startswith("evaluation/")}
    run = history(calm | {"reward/mean": np.linspace(0.4, 0.5, points)})
    assert diagnose(run, (detector,)).failures == ()

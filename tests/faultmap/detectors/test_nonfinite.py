"""NaN and infinity: which came first, and what preceded it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posttrain.faultmap.detectors.nonfinite import DETECTOR
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import Course, Facts, History
from posttrain.signals.framework import Framework

N = 30


def run(**changes: dict[int, float]) -> History:
    """Thirty good steps of four signals; ``changes`` sets single values, NaN and infinity included."""
    good = {
        "policy/loss": 0.0,
        "policy/grad_norm": 0.5,
        "policy/anchor_kl": 0.01,
        "reward/mean": 0.5,
        "policy/entropy": 0.6,
    }
    names = [*good, *(name.replace("__", "/") for name in changes if name.replace("__", "/") not in good)]
    steps = np.arange(1, N + 1, dtype=np.int64)
    courses: dict[str, Course] = {}
    for name in names:
        values = np.full(N, good.get(name, 1.0))
        for step, value in changes.get(name.replace("/", "__"), {}).items():
            values[step - 1] = value
        courses[name] = Course(name, steps, values)
    return History(Framework.POSTTRAIN, "made", courses, Facts(group_size=8))


def only(history: History) -> Finding:
    findings = DETECTOR.judge(history)
    assert len(findings) == 1, findings
    return findings[0]


def test_finite_runs_are_silent() -> None:
    assert not DETECTOR.judge(run())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_signal_of_the_first_bad_step_is_named(value: float) -> None:
    finding = only(
        run(policy__grad_norm={20: value, 21: value}, policy__anchor_kl={20: math.inf}, policy__loss={22: value})
    )
    assert finding.onset_step == 20
    assert finding.summary.startswith("policy/anchor_kl is inf at step 20, with policy/grad_norm")
    assert finding.evidence[0].signal == "policy/anchor_kl"


def test_a_divergence_that_blew_up_before_names_the_learning_rate() -> None:
    growing = {step: 0.5 * 2.0 ** (step - 15) for step in range(15, 20)}
    finding = only(run(policy__anchor_kl={**growing, 20: math.inf}, policy__grad_norm={20: math.nan}))
    assert finding.cause == "learning_rate_too_high"


def test_advantages_beyond_any_group_name_the_division() -> None:
    finding = only(run(policy__advantage_abs_max={19: 1e6}, policy__grad_norm={20: math.nan, 21: math.nan}))
    assert (finding.cause, finding.severity) == ("tiny_std_division", Severity.CRITICAL)


def test_a_ratio_that_overflows_is_told() -> None:
    finding = only(run(policy__ratio_max={19: math.exp(60.0)}, policy__grad_norm={20: math.nan, 30: math.nan}))
    assert "overflows" in finding.summary


def test_a_reward_that_is_not_finite_is_the_graders() -> None:
    assert only(run(reward__mean={12: math.nan}, policy__loss={12: math.nan})).cause == "grader_failing"


def test_one_bad_step_that_passed_is_a_warning_and_ended() -> None:
    finding = only(run(policy__grad_norm={12: math.nan}))
    assert (finding.severity, finding.onset_step, finding.last_step) == (Severity.WARN, 12, 12)


def test_a_run_that_ends_in_nan_is_critical_and_goes_on() -> None:
    finding = only(run(policy__grad_norm={N: math.nan}))
    assert (finding.severity, finding.last_step) == (Severity.CRITICAL, None)


def test_the_mean_of_nothing_informs() -> None:
    finding = only(run(rollout__length_correct_mean={3: math.nan, 4: math.nan}))
    assert finding.severity is Severity.INFO


def test_tokens_without_a_log_prob_name_the_support() -> None:
    history = run(logprobs__nonfinite_tokens={step: 0.0 if step < 10 else 3.0 for step in range(1, N + 1)})
    finding = only(history)
    assert (finding.cause, finding.severity, finding.onset_step) == ("support_not_matched", Severity.WARN, 10)

"""Clip fraction: inert under lag, by construction on policy, or high."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import flickers
from series import history
from worlds import Step, World

from posttrain.faultmap.detectors import clip_high, clip_inert
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import Facts, History

INERT, HIGH = clip_inert.DETECTOR, clip_high.DETECTOR


def never_clipped(steps: int = 20, facts: Facts | None = None, **courses: float) -> History:
    table = {name.replace("__", "/"): [value] * steps for name, value in courses.items()}
    table |= {"policy/clip_fraction_high": [0.0] * steps, "policy/grad_norm": [0.3] * steps}
    return history(table, facts=facts)


def only(findings: object) -> Finding:
    assert isinstance(findings, tuple)
    assert len(findings) == 1
    return findings[0]


def test_nothing_clipped_on_policy_is_expected() -> None:
    run = never_clipped(policy__updates=1.0, schedule__staleness_mean=0.0)
    finding = only(INERT.judge(run))
    assert (finding.cause, finding.severity) == ("expected_by_construction", Severity.INFO)


@pytest.mark.parametrize("age", [0.5, 1.0, 4.0])
def test_nothing_clipped_on_old_data_without_correction_is_a_fault(age: float) -> None:
    run = never_clipped(facts=Facts(corrected=False), policy__updates=1.0, schedule__staleness_mean=age)
    finding = only(INERT.judge(run))
    assert (finding.cause, finding.severity) == ("data_too_old", Severity.WARN)


def test_a_visible_gap_decides_where_the_correction_is_unknown() -> None:
    near = never_clipped(policy__updates=1.0, schedule__staleness_mean=2.0, logprobs__mismatch_mean=0.001)
    far = never_clipped(policy__updates=1.0, schedule__staleness_mean=2.0, logprobs__mismatch_mean=0.05)
    assert only(INERT.judge(near)).severity is Severity.INFO
    assert only(INERT.judge(far)).severity is Severity.WARN


def test_old_data_with_a_weight_of_its_own_is_healthy() -> None:
    run = never_clipped(facts=Facts(corrected=True), policy__updates=1.0, schedule__staleness_mean=2.0)
    assert only(INERT.judge(run)).severity is Severity.INFO


def test_several_updates_with_every_ratio_one_are_a_fault_and_with_small_ratios_not() -> None:
    same = never_clipped(policy__updates=4.0, policy__ratio_max=1.0, policy__ratio_min=1.0)
    small = never_clipped(policy__updates=4.0, policy__ratio_max=1.1, policy__ratio_min=0.92)
    assert only(INERT.judge(same)).severity is Severity.WARN
    assert only(INERT.judge(small)).severity is Severity.INFO


def test_without_a_word_on_lag_nothing_is_said() -> None:
    assert not INERT.judge(never_clipped())


def test_one_clipped_step_is_enough_to_be_alive() -> None:
    run = history(
        {
            "policy/clip_fraction_high": [0.0] * 15 + [0.001] + [0.0] * 5,
            "schedule/staleness_mean": [2.0] * 21,
            "policy/grad_norm": [0.3] * 21,
        },
        facts=Facts(corrected=False),
    )
    assert not INERT.judge(run)


def reused(clip: float, onset: int) -> World:
    def fault(step: Step, k: int) -> None:
        step.clip, step.ess, step.skill = clip, 0.5, -2.0

    return World(fault=fault, onset=onset, updates=8)


@pytest.mark.parametrize("clip", [0.25, 0.4, 0.6])
@pytest.mark.parametrize("onset", [10, 30, 50])
def test_much_clipped_while_the_reward_does_not_gain(clip: float, onset: int) -> None:
    run = reused(clip, onset).run()
    finding = only(HIGH.judge(run))
    assert (finding.cause, finding.severity) == ("batch_reused_too_often", Severity.WARN)
    assert onset - 1 <= finding.onset_step <= onset + 12


def test_it_stays() -> None:
    assert flickers(HIGH, reused(0.4, 20).run()) == 0


def test_much_clipped_at_a_steady_level_while_learning_is_healthy() -> None:
    rng = np.random.default_rng(0)
    run = history(
        {
            "policy/clip_fraction_high": 0.3 + rng.normal(0, 0.02, 80),
            "reward/mean": np.linspace(0.2, 0.9, 80) + rng.normal(0, 0.04, 80),
            "policy/updates": [4.0] * 80,
        }
    )
    assert not HIGH.judge(run)


def test_anything_clipped_on_policy_means_two_passes_that_differ() -> None:
    run = history(
        {
            "policy/clip_fraction_high": [0.06] * 20,
            "policy/updates": [1.0] * 20,
            "schedule/staleness_mean": [0.0] * 20,
        }
    )
    finding = only(HIGH.judge(run))
    assert (finding.cause, finding.severity) == ("numerics_differ", Severity.WARN)

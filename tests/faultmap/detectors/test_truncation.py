"""Attempts at the cap: missed stop token, short cap, wrong metric, or a start that training repairs."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import first_named, flickers
from series import history
from worlds import TRL_KEYS, Step, World

from posttrain.faultmap.detectors.truncation import DETECTOR
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import Facts


def test_all_cut_far_under_the_cap_means_a_stop_token_that_is_not_recognised() -> None:
    run = history(
        {"rollout/truncated_share": [0.97] * 20, "rollout/length_max": [300.0] * 20, "reward/mean": [0.5] * 20},
        facts=Facts(max_new_tokens=2048),
    )
    (finding,) = DETECTOR.judge(run)
    assert (finding.cause, finding.severity) == ("stop_token_missed", Severity.WARN)
    assert finding.confidence >= 0.8


def test_mean_far_under_the_longest_says_so_without_a_known_cap() -> None:
    run = history(
        {
            "rollout/truncated_share": [0.98] * 20,
            "rollout/length_max": [300.0] * 20,
            "rollout/length_mean": [120.0] * 20,
            "reward/mean": [0.1] * 20,
        }
    )
    assert DETECTOR.judge(run)[0].cause == "stop_token_missed"


@pytest.mark.parametrize("keys", [None, TRL_KEYS], ids=["full", "sparse"])
@pytest.mark.parametrize("share", [0.7, 0.9, 0.99])
@pytest.mark.parametrize("onset", [10, 25, 50])
def test_a_stop_token_lost_on_the_way_shows_at_once(share: float, onset: int, keys: tuple[str, ...] | None) -> None:
    def fault(step: Step, k: int) -> None:
        step.truncated = share

    (finding,) = DETECTOR.judge(World(fault=fault, onset=onset, keys=keys).run())
    assert finding.cause == "stop_token_missed"
    assert finding.severity is Severity.WARN
    assert abs(finding.onset_step - onset - 1) <= 1


def test_a_jump_after_two_points_is_seen_though_the_reward_gains() -> None:
    share = [0.01, 0.0, *[0.55] * 40]
    reward = [*np.linspace(0.4, 0.9, 42)]
    (finding,) = DETECTOR.judge(history({"rollout/truncated_share": share, "reward/mean": reward}))
    assert (finding.cause, finding.onset_step, finding.severity) == ("stop_token_missed", 3, Severity.WARN)


def test_answers_of_fixed_length_that_are_learnt_inform() -> None:
    run = history({"rollout/truncated_share": [1.0] * 60, "reward/mean": [*np.linspace(0.1, 0.7, 60)]})
    (finding,) = DETECTOR.judge(run)
    assert finding.severity is Severity.INFO


def test_it_is_named_soon_and_stays() -> None:
    def fault(step: Step, k: int) -> None:
        step.truncated = 0.95

    run = World(fault=fault, onset=25).run()
    named = first_named(DETECTOR, run)
    assert named is not None
    assert named <= 30
    assert flickers(DETECTOR, run) == 0


def test_a_share_that_grows_with_length_is_the_caps() -> None:
    def fault(step: Step, k: int) -> None:
        step.truncated = min(0.05 + 0.02 * k, 0.9)
        step.skill = -2.0

    (finding,) = DETECTOR.judge(World(fault=fault, onset=15).run())
    assert finding.cause == "length_cap_too_short"
    assert finding.severity >= Severity.WARN


def test_cut_from_the_start_and_never_better_is_a_warning_not_critical() -> None:
    def fault(step: Step, k: int) -> None:
        step.truncated, step.skill = 0.7, -2.5

    (finding,) = DETECTOR.judge(World(fault=fault, onset=0).run())
    assert (finding.cause, finding.severity, finding.onset_step) == ("length_cap_too_short", Severity.WARN, 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_start_that_training_repairs_is_no_warning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = np.clip(0.98 * np.exp(-0.15 * np.arange(40)) + rng.normal(0, 0.02, 40), 0, 1)
    reward = 0.9 - 0.8 * np.exp(-0.15 * np.arange(40)) + rng.normal(0, 0.03, 40)
    run = history({"rollout/truncated_share": share, "reward/mean": reward})
    assert first_named(DETECTOR, run) is None


def test_few_cut_attempts_are_nothing() -> None:
    assert not DETECTOR.judge(World(truncated=0.3).run())


def test_four_points_are_too_few_to_judge() -> None:
    assert not DETECTOR.judge(history({"rollout/truncated_share": [1.0, 0.9, 0.8, 0.6]}))


@pytest.mark.parametrize(("longest", "cause"), [(30.0, "length_cap_too_short"), (200.0, "stop_token_missed")])
def test_a_lowered_cap_is_told_from_a_missed_stop_token_by_the_longest_attempt(longest: float, cause: str) -> None:
    late = np.arange(60) >= 30
    run = history(
        {
            "rollout/truncated_share": np.where(late, 0.9, 0.02),
            "rollout/length_max": np.where(late, longest, 100.0),
            "rollout/length_mean": np.where(late, 0.95 * longest, 50.0),
            "reward/mean": np.where(late, 0.1, 0.7),
        }
    )
    (finding,) = DETECTOR.judge(run)
    assert finding.cause == cause

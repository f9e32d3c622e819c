"""Collapse to one constant answer against solved tasks with little entropy."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array, Batch, Latent, draw, healthy, learning
from series import history

from posttrain.faultmap.detectors.constant_policy import DETECTOR
from posttrain.faultmap.finding import Severity


def test_the_published_case_is_named_at_its_point() -> None:
    """Entropy, divergence and gradient alone, ten points: constant at point 8."""
    run = history(
        {
            "policy/entropy": [0.96, 1.5, 1.3, 0.9, 1.8, 3.9, 0.6, 0.0, 0.0, 0.0],
            "policy/anchor_kl": [0.0, 4.1, 4.5, 4.9, 12.7, 12.9, 6.3, 3.0, 2.9, 3.0],
            "policy/grad_norm": [4.4, 7.5, 0.7, 8.3, 19.6, 22.0, 1.2, 0.0, 0.0, 0.0],
        }
    )
    assert watch(DETECTOR, run).first(Severity.CRITICAL) == 9
    (finding,) = DETECTOR.judge(run)
    assert finding.onset_step == 8
    assert finding.cause == "learning_rate_too_high"
    assert "Stop the run" in finding.summary


def freezing(onset: int, level: float, seed: int, n: int = 50) -> dict[str, Array]:
    """Entropy and gradient vanish at ``onset``; every attempt of a task is then the same, right for some tasks."""
    success = learning(n, 0.2, 0.5, 0.4)
    dark = np.arange(n) >= onset
    latent = Latent(success, np.where(dark, 1e-4, 0.7), np.where(dark, 3.0, 60.0), np.where(dark, 0.0, 0.3))
    courses = draw(latent, np.random.default_rng(seed), Batch(16, 8))
    for name in ("reward/mean", "reward/success"):
        courses[name][onset:] = np.random.default_rng(seed).binomial(16, level, n - onset) / 16
    courses["reward/zero_variance_groups"][onset:] = 1.0
    courses["reward/group_std_mean"][onset:] = 0.0
    return courses


@pytest.mark.parametrize("onset", [6, 20, 40])
@pytest.mark.parametrize("level", [0.0, 0.2, 0.6])
def test_a_frozen_policy_is_critical_two_points_on(onset: int, level: float) -> None:
    run = history(freezing(onset, level, onset))
    assert watch(DETECTOR, run).first(Severity.CRITICAL) == onset + 2
    (finding,) = DETECTOR.judge(run)
    assert finding.onset_step == onset + 1
    assert watch(DETECTOR, run).flickers() == 0


def test_a_stray_gradient_does_not_end_it() -> None:
    courses = freezing(20, 0.3, 1)
    courses["policy/grad_norm"][30] = 5.0
    assert watch(DETECTOR, history(courses)).flickers() == 0


@pytest.mark.parametrize("seed", range(6))
def test_solved_short_answers_may_have_no_entropy(seed: int) -> None:
    success = learning(60, 0.3, 0.999, 0.3, 20.0)
    latent = Latent(success, 0.5 * (1 - success) + 1e-4, np.full(60, 3.0), 0.2 * (1 - success))
    run = history(draw(latent, np.random.default_rng(seed), Batch(8, 8)))
    assert watch(DETECTOR, run).first(Severity.INFO) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_little_entropy_from_the_start_is_no_collapse(seed: int) -> None:
    run = history(draw(healthy(np.full(40, 0.4), entropy=0.01), np.random.default_rng(seed)))
    assert watch(DETECTOR, run).first(Severity.INFO) is None

"""Gradient norms: spikes inform, a level that rose with a falling reward warns."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import flickers
from series import history
from worlds import Step, World

from posttrain.faultmap.detectors.gradient_spike import DETECTOR
from posttrain.faultmap.finding import Severity


@pytest.mark.parametrize("size", [30.0, 100.0, 1000.0])
@pytest.mark.parametrize("at", [12, 30, 70])
def test_a_single_spike_informs(size: float, at: int) -> None:
    rng = np.random.default_rng(at)
    norm = np.exp(rng.normal(0, 0.25, 80))
    norm[at] *= size
    (finding,) = DETECTOR.judge(history({"policy/grad_norm": norm, "reward/mean": np.linspace(0.2, 0.9, 80)}))
    assert (finding.severity, finding.onset_step, finding.last_step) == (Severity.INFO, at + 1, at + 1)


def test_a_first_step_far_above_the_rest_is_nothing() -> None:
    assert not DETECTOR.judge(history({"policy/grad_norm": [520.0, 130.0, 9.0, *[2.0] * 60]}))


@pytest.mark.parametrize("factor", [4.0, 8.0, 30.0])
@pytest.mark.parametrize("onset", [40, 60, 80])
def test_a_level_that_rose_while_the_reward_fell(factor: float, onset: int) -> None:
    def fault(step: Step, k: int) -> None:
        step.gradient *= 1.0 + (factor - 1.0) * min(k / 5.0, 1.0)
        step.skill -= 0.5 * k

    run = World(fault=fault, onset=onset, learnt_at=0.15, steps=120, spread=3.0).run()
    (finding,) = DETECTOR.judge(run)
    assert finding.severity is Severity.WARN
    assert onset - 2 <= finding.onset_step <= onset + 15


def test_it_stays() -> None:
    def fault(step: Step, k: int) -> None:
        step.gradient *= 8.0
        step.skill -= 0.5 * k

    assert flickers(DETECTOR, World(fault=fault, onset=40, learnt_at=0.15, steps=70).run()) == 0


def test_a_level_that_rose_while_the_reward_did_is_healthy() -> None:
    rng = np.random.default_rng(0)
    norm = np.linspace(0.3, 3.0, 100) * np.exp(rng.normal(0, 0.2, 100))
    assert not DETECTOR.judge(history({"policy/grad_norm": norm, "reward/mean": np.linspace(0.1, 0.9, 100)}))


def test_steps_without_a_gradient_do_not_lower_the_level() -> None:
    rng = np.random.default_rng(1)
    norm = np.where(rng.random(100) < 0.6, 0.0, 0.05 * np.exp(rng.normal(0, 0.3, 100)))
    reward = 0.9 + rng.normal(0, 0.02, 100)
    assert not DETECTOR.judge(history({"policy/grad_norm": norm, "reward/mean": reward}))


def test_advantages_beyond_any_group_are_a_division_by_almost_nothing() -> None:
    norm, advantage = np.full(40, 0.5), np.full(40, 2.0)
    norm[25], advantage[25] = 35.0, 7428.0
    (finding,) = DETECTOR.judge(history({"policy/grad_norm": norm, "policy/advantage_abs_max": advantage}))
    assert (finding.cause, finding.severity) == ("tiny_std_division", Severity.WARN)

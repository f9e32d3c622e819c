"""Heavy tails of the ratios: a symptom of the update whose causes lie in four layers."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import first_named, flickers
from series import history
from worlds import Step, World

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detectors.ratio_tail import DETECTOR
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import Facts
from posttrain.signals.signal import Layer


def ageing(speed: float, onset: int) -> World:
    def fault(step: Step, k: int) -> None:
        step.staleness = min(k / 2.0, 10.0)
        step.ess = max(1.0 - speed * k, 0.05)
        step.gap = 0.01 + 0.004 * step.staleness

    return World(fault=fault, onset=onset, facts=Facts(asynchronous=True))


@pytest.mark.parametrize("speed", [0.015, 0.03, 0.1])
@pytest.mark.parametrize("onset", [5, 20, 35])
def test_data_that_ages_is_named_in_the_schedules_layer(speed: float, onset: int) -> None:
    run = ageing(speed, onset).run()
    (finding,) = DETECTOR.judge(run)
    assert finding.cause == "data_too_old"
    assert SYMPTOMS[finding.symptom].layer is Layer.POLICY
    assert CAUSES[finding.cause].layer is Layer.SCHEDULE
    assert finding.onset_step <= onset + 4 + 0.6 / speed


def test_it_is_named_soon_and_stays() -> None:
    run = ageing(0.1, 20).run()
    named = first_named(DETECTOR, run)
    assert named is not None
    assert named <= 32
    assert flickers(DETECTOR, run) == 0


def test_many_updates_on_one_batch() -> None:
    def fault(step: Step, k: int) -> None:
        step.ess, step.clip, step.ratio_max = 0.35, 0.3, 60.0

    (finding,) = DETECTOR.judge(World(fault=fault, updates=8, facts=Facts(asynchronous=False)).run())
    assert finding.cause == "batch_reused_too_often"


def test_old_weights_in_the_engine() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap = 0.2 + 0.03 * k
        step.ess = max(0.9 - 0.05 * k, 0.05)

    (finding,) = DETECTOR.judge(World(fault=fault, facts=Facts(asynchronous=False)).run())
    assert finding.cause == "stale_weights"
    assert CAUSES[finding.cause].layer is Layer.ROLLOUT


def test_a_temperature_the_trainer_does_not_know() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap, step.direction, step.ess = 0.4, 2.2, 0.4

    (finding,) = DETECTOR.judge(World(fault=fault, onset=0, facts=Facts(asynchronous=False)).run())
    assert finding.cause == "temperature_not_matched"
    assert CAUSES[finding.cause].layer is Layer.LOGPROBS


@pytest.mark.parametrize("seed", range(5))
def test_ratios_of_a_healthy_run_with_four_updates(seed: int) -> None:
    assert not DETECTOR.judge(World(updates=4, seed=seed).run())


def test_single_large_ratios_are_nothing() -> None:
    rng = np.random.default_rng(0)
    largest = np.exp(np.abs(rng.normal(1.0, 0.7, 200)))
    largest[::40] = 200.0
    assert not DETECTOR.judge(history({"policy/ratio_max": largest, "policy/ratio_ess": [0.95] * 200}))


def test_a_starved_update_that_loses_the_reward_is_critical() -> None:
    def fault(step: Step, k: int) -> None:
        step.ess, step.skill, step.staleness = 0.04, -6.0, 8.0

    (finding,) = DETECTOR.judge(World(fault=fault, onset=50, learnt_at=0.2).run())
    assert finding.severity is Severity.CRITICAL

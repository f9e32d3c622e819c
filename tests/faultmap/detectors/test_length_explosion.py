"""Length that grows in vain, or because it is paid for."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import first_named, flickers
from series import GivenSamples, history
from worlds import TRL_KEYS, Step, World

from posttrain.faultmap.detectors.length_explosion import DETECTOR
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import Sample
from posttrain.faultmap.length_pay import length_pay


def growing(speed: float, onset: int = 20, **world: object) -> World:
    def fault(step: Step, k: int) -> None:
        step.length *= min(float(np.exp(speed * k)), 4.0)
        step.skill = -2.0

    return World(fault=fault, onset=onset, **world)  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [None, TRL_KEYS], ids=["full", "sparse"])
@pytest.mark.parametrize("speed", [0.05, 0.1, 0.4])
@pytest.mark.parametrize("onset", [10, 20, 35])
def test_length_grows_and_the_reward_does_not(speed: float, onset: int, keys: tuple[str, ...] | None) -> None:
    world = growing(speed, onset, keys=keys, learnt_at=0.95, steps=100, seed=onset)
    (finding,) = DETECTOR.judge(world.run())
    assert finding.severity >= Severity.WARN
    assert onset <= finding.onset_step <= onset + 2 + 0.8 / speed
    assert {c.cause for c in finding.differential} >= {"reward_hacked", "stop_token_missed", "data_too_old"}


def test_it_is_named_soon_and_stays() -> None:
    run = growing(0.2, learnt_at=0.95).run()
    named = first_named(DETECTOR, run)
    assert named is not None
    assert named <= 35
    assert flickers(DETECTOR, run) == 0


@pytest.mark.parametrize("seed", range(5))
def test_thoughts_that_grow_with_the_reward_are_healthy(seed: int) -> None:
    assert not DETECTOR.judge(World(length_change=3.0, cap=4096, steps=120, seed=seed).run())


def test_reward_that_rises_with_length_while_successes_do_not_pays_for_length() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(60)
    length = 40 + 3.0 * np.maximum(t - 10, 0) + rng.normal(0, 2, 60)
    run = history(
        {
            "rollout/length_mean": length,
            "reward/mean": 0.3 + 0.004 * (length - 40) + rng.normal(0, 0.02, 60),
            "reward/success": 0.3 + rng.normal(0, 0.02, 60),
            "reward/max": np.full(60, 1.6),
            "reward/min": np.zeros(60),
        }
    )
    (finding,) = DETECTOR.judge(run)
    assert (finding.cause, finding.severity) == ("reward_hacked", Severity.WARN)


def paid_by_degrees(correlated: bool) -> GivenSamples:
    rng = np.random.default_rng(1)
    samples = []
    for group in range(6):
        for _ in range(8):
            tokens = int(rng.integers(20, 200))
            reward = 0.005 * tokens if correlated else float(rng.random() < 0.5)
            samples.append(Sample(50, f"task {group}", "words", reward, group_id=str(group), tokens=tokens))
    return GivenSamples({50: samples})


def test_samples_show_what_the_reward_pays_for() -> None:
    t = np.arange(60, dtype=float)
    courses = {"rollout/length_mean": 40 + 2 * t, "reward/mean": 0.2 + 0.01 * t}
    hacked = history(courses, samples=paid_by_degrees(True))
    (finding,) = DETECTOR.judge(hacked)
    assert finding.cause == "reward_hacked"
    assert not DETECTOR.judge(history(courses, samples=paid_by_degrees(False)))


def test_right_or_wrong_is_no_pay_for_length_even_if_long_attempts_are_right() -> None:
    rows = [Sample(1, "q", "w", float(n > 100), group_id=str(n % 3), tokens=n) for n in range(40, 160, 4)]
    pay = length_pay(history({"reward/mean": [0.5]}, samples=GivenSamples({1: rows})), 1)
    assert pay is not None
    assert pay.correlation > 0.7
    assert not pay.pays


def test_several_updates_on_a_batch_are_named() -> None:
    def fault(step: Step, k: int) -> None:
        step.length *= min(1.0 + 0.2 * k, 3.5)
        step.clip, step.ess, step.skill = 0.35, 0.6, -2.0

    (finding,) = DETECTOR.judge(World(fault=fault, updates=8, learnt_at=0.95).run())
    assert finding.cause == "batch_reused_too_often"

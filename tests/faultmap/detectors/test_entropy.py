"""Entropy lost or gained without a reason."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import first_named, flickers
from worlds import TRL_KEYS, Step, World

from posttrain.faultmap.detectors import entropy_collapse, entropy_explosion
from posttrain.faultmap.finding import Severity

COLLAPSE, EXPLOSION = entropy_collapse.DETECTOR, entropy_explosion.DETECTOR
KEYS = pytest.mark.parametrize("keys", [None, TRL_KEYS], ids=["full", "sparse"])


def losing(speed: float) -> World:
    def fault(step: Step, k: int) -> None:
        step.entropy = max(step.entropy * float(np.exp(-speed * (k + 1))), 1e-4)
        step.skill = -2.0

    return World(fault=fault)


@KEYS
@pytest.mark.parametrize("speed", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("onset", [3, 10, 20])
def test_entropy_lost_before_anything_is_learnt(speed: float, onset: int, keys: tuple[str, ...] | None) -> None:
    world = losing(speed)
    world.onset, world.keys, world.learnt_at, world.seed = onset, keys, 0.9, onset
    (finding,) = COLLAPSE.judge(world.run())
    assert (finding.symptom, finding.cause) == ("entropy_collapse", "no_exploration")
    assert finding.severity >= Severity.WARN
    assert abs(finding.onset_step - onset) <= 4 + 0.8 / speed
    assert {c.cause for c in finding.differential} >= {"reward_hacked", "temperature_not_matched", "data_too_old"}


def test_it_is_named_soon_and_stays() -> None:
    world = losing(0.5)
    world.learnt_at = 0.9
    run = world.run()
    named = first_named(COLLAPSE, run)
    assert named is not None
    assert world.onset < named <= world.onset + 15
    assert flickers(COLLAPSE, run) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_solved_task_may_lose_its_entropy(seed: int) -> None:
    assert not COLLAPSE.judge(World(entropy_kept=0.02, last_skill=4.5, seed=seed, steps=120).run())


def test_a_reward_that_fell_with_it_counts_though_some_was_won() -> None:
    def fault(step: Step, k: int) -> None:
        step.entropy = 0.002
        step.skill = -3.0

    findings = COLLAPSE.judge(World(fault=fault, onset=50).run())
    assert findings
    assert findings[0].severity >= Severity.WARN


def test_a_divergence_that_blew_up_first_is_the_learning_rates() -> None:
    def fault(step: Step, k: int) -> None:
        step.kl, step.entropy, step.skill = 6.0, 1e-3, -3.0

    (finding,) = COLLAPSE.judge(World(fault=fault, onset=5).run())
    assert finding.cause == "learning_rate_too_high"


def climbing(speed: float) -> World:
    def fault(step: Step, k: int) -> None:
        step.entropy *= float(np.exp(min(speed * k, 3.5)))
        step.gradient *= float(np.exp(min(speed * k, 2.0)))
        step.skill -= 3.0 * speed * k

    return World(fault=fault, steps=120, learnt_at=0.2)


@KEYS
@pytest.mark.parametrize("speed", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("onset", [45, 60, 80])
def test_text_that_turns_to_noise(speed: float, onset: int, keys: tuple[str, ...] | None) -> None:
    world = climbing(speed)
    world.onset, world.keys = onset, keys
    (finding,) = EXPLOSION.judge(world.run())
    assert (finding.cause, finding.severity) == ("policy_collapsed", Severity.CRITICAL)
    assert onset - 3 <= finding.onset_step <= onset + 2 + 1.5 / speed


def test_noise_is_named_soon_and_stays() -> None:
    world = climbing(0.2)
    world.onset = 60
    run = world.run()
    named = first_named(EXPLOSION, run)
    assert named is not None
    assert 60 < named <= 75
    assert flickers(EXPLOSION, run) == 0


def test_entropy_may_rise_while_the_reward_does() -> None:
    assert not EXPLOSION.judge(World(entropy_kept=5.0, first_entropy=0.2, steps=120).run())


def test_garbage_from_the_engine_is_not_the_updates_fault() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap, step.skill, step.entropy = 1.5, -9.0, 2.5

    (finding,) = EXPLOSION.judge(World(fault=fault, onset=50, learnt_at=0.1).run())
    assert finding.cause == "weights_corrupted_in_sync"

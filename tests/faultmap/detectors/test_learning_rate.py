"""A learning rate that throws the policy away, one that moves nothing, and an anchor that does either."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prefixes import first_named, flickers
from series import history
from worlds import TRL_KEYS, Step, World, only

from posttrain.faultmap.detectors import anchor_strength, kl_high, learning_rate
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import Facts

RATE, ANCHOR, KL = learning_rate.DETECTOR, anchor_strength.DETECTOR, kl_high.DETECTOR
KL_COURSE = (1.0, 4.1, 4.5, 4.9, 12.7, 12.9, 6.3)
GRADIENTS = (4.0, 7.5, 8.0, 8.3, 20.0, 22.0, 1.2)


def thrown_away(size: float, onset: int, keys: tuple[str, ...] | None = None) -> World:
    def fault(step: Step, k: int) -> None:
        late = k >= len(KL_COURSE)
        step.kl = size * (3.0 if late else KL_COURSE[k])
        step.gradient = 1e-7 if late else GRADIENTS[k]
        step.entropy = 1e-4 if late else step.entropy * (1.0 + k / 2.0)
        step.skill = -3.0

    return World(fault=fault, onset=onset, keys=keys, learnt_at=0.6)


@pytest.mark.parametrize("size", [0.7, 1.0, 4.0])
@pytest.mark.parametrize("onset", [1, 5, 20])
def test_a_policy_thrown_away_in_a_few_steps(size: float, onset: int) -> None:
    (finding,) = RATE.judge(thrown_away(size, onset).run())
    assert (finding.cause, finding.severity) == ("learning_rate_too_high", Severity.CRITICAL)
    assert abs(finding.onset_step - onset) <= 3


def test_it_is_seen_by_the_gradient_where_no_divergence_is_logged() -> None:
    (finding,) = RATE.judge(thrown_away(1.0, 8, TRL_KEYS).run())
    assert finding.cause == "learning_rate_too_high"


@pytest.mark.parametrize("onset", [3, 20, 40])
def test_a_rate_that_jumps_and_takes_the_entropy(onset: int) -> None:
    def fault(step: Step, k: int) -> None:
        step.entropy = max(step.entropy * float(np.exp(-0.5 * k)), 1e-3)

    world = World(fault=fault, onset=onset)
    table = {n: c.values.copy() for n, c in world.run().courses.items()}
    table["policy/learning_rate"][onset:] *= 40.0
    (finding,) = RATE.judge(history(table))
    assert (finding.cause, finding.onset_step) == ("learning_rate_too_high", onset + 1)


def test_a_warm_up_is_no_jump() -> None:
    table = {n: c.values.copy() for n, c in World(entropy_kept=0.01, last_skill=4.0).run().courses.items()}
    table["policy/learning_rate"][:6] = [0.0, 1e-9, 1e-8, 1e-7, 1e-6, 5e-6]
    assert not RATE.judge(history(table))


def test_it_is_named_soon_and_stays() -> None:
    run = thrown_away(1.0, 5).run()
    named = first_named(RATE, run)
    assert named is not None
    assert named <= 20
    assert flickers(RATE, run) == 0


def test_a_late_collapse_is_not_blamed_on_a_rate_that_worked_for_long() -> None:
    def fault(step: Step, k: int) -> None:
        step.kl, step.entropy, step.skill, step.gradient = 3.0, 5.0, -6.0, 9.0

    world = World(fault=fault, onset=60, learnt_at=0.2, steps=100)
    assert not RATE.judge(world.run())
    (finding,) = KL.judge(world.run())
    assert (finding.cause, finding.severity) == ("policy_collapsed", Severity.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_divergence_that_pays_is_healthy(seed: int) -> None:
    def fault(step: Step, k: int) -> None:
        step.kl = 0.8 * (step.skill + 2.0)

    run = World(fault=fault, onset=0, steps=80, seed=seed).run()
    assert not RATE.judge(run)
    assert not KL.judge(run)


def still(step: Step, k: int) -> None:
    step.skill, step.entropy, step.length, step.truncated, step.kl = -1.0, 0.6, 60.0, 0.05, 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keys", [None, TRL_KEYS], ids=["full", "sparse"])
def test_nothing_moves_although_there_is_signal(seed: int, keys: tuple[str, ...] | None) -> None:
    run = World(fault=still, onset=0, steps=100, seed=seed, keys=keys, rate=1e-9).run()
    (finding,) = RATE.judge(run)
    assert (finding.symptom, finding.cause) == ("no_progress", "learning_rate_too_low")
    assert first_named(RATE, run, Severity.WARN) is not None


def test_a_rate_of_zero_is_a_warm_up_or_an_audit() -> None:
    assert not RATE.judge(World(fault=still, onset=0, steps=100, rate=0.0).run())


def test_tasks_without_signal_are_not_the_rates_fault() -> None:
    def fault(step: Step, k: int) -> None:
        still(step, k)
        step.skill = -12.0

    assert not RATE.judge(World(fault=fault, onset=0, steps=100).run())


def test_solved_tasks_need_no_rate() -> None:
    def fault(step: Step, k: int) -> None:
        still(step, k)
        step.skill = 3.5

    assert not RATE.judge(World(fault=fault, onset=0, steps=100).run())


def test_an_engine_with_old_weights_explains_a_reward_that_stands() -> None:
    def fault(step: Step, k: int) -> None:
        still(step, k)
        step.gap = 0.01 * (k + 1)

    assert not RATE.judge(World(fault=fault, onset=0, steps=100).run())


def anchored(weight: float | None, kl: float) -> World:
    def fault(step: Step, k: int) -> None:
        still(step, k)
        step.kl = kl * (1.0 - float(np.exp(-k / 4.0))) + 1e-5

    return World(fault=fault, onset=0, steps=80, facts=Facts(anchor_weight=weight))


@pytest.mark.parametrize("weight", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("kl", [0.001, 0.01, 0.03])
def test_an_anchor_that_holds_the_policy(weight: float, kl: float) -> None:
    (finding,) = ANCHOR.judge(anchored(weight, kl).run())
    assert (finding.symptom, finding.cause) == ("anchor_blocks", "anchor_too_strong")
    assert finding.severity is Severity.WARN
    assert not RATE.judge(anchored(weight, kl).run())


@pytest.mark.parametrize("weight", [None, 0.0, 0.001])
def test_a_weak_or_unknown_anchor_is_not_blamed(weight: float | None) -> None:
    assert not ANCHOR.judge(anchored(weight, 0.01).run())


def test_a_heavy_anchor_that_stops_a_run_after_a_first_gain() -> None:
    def fault(step: Step, k: int) -> None:
        still(step, k)
        step.kl = 0.015 * (1.0 - float(np.exp(-k / 4.0))) + 1e-5
        step.skill = -1.0 + 0.6 * (1.0 - float(np.exp(-k / 4.0)))

    world = World(fault=fault, onset=0, steps=80, facts=Facts(anchor_weight=3.0), prompts=32)
    (finding,) = ANCHOR.judge(world.run())
    assert finding.cause == "anchor_too_strong"


def test_an_anchored_run_that_learns_is_healthy() -> None:
    assert not ANCHOR.judge(World(facts=Facts(anchor_weight=0.1)).run())


@pytest.mark.parametrize("weight", [1e-6, 1e-4])
def test_an_anchor_without_effect_informs(weight: float) -> None:
    def fault(step: Step, k: int) -> None:
        step.kl = 0.01 * float(np.exp(min(0.12 * k, 8.0)))

    world = World(fault=fault, onset=0, facts=Facts(anchor_weight=weight))
    (finding,) = ANCHOR.judge(world.run())
    assert (finding.cause, finding.severity) == ("anchor_inert", Severity.INFO)
    assert not ANCHOR.judge(replace(world, facts=Facts(anchor_weight=0.1)).run())


def test_without_entropy_and_divergence_stillness_cannot_be_judged() -> None:
    run = only(World(fault=still, onset=0).run(), "policy/entropy", "policy/sampled_entropy", "policy/anchor_kl")
    assert RATE.missing(run)

"""Grading that changes at once: pay for length, tasks that can no longer be solved, everything solved in one step."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array, Batch, draw, healthy, learning
from series import GivenSamples, history

from posttrain.faultmap.detectors import no_group_signal, reward_dead, reward_hacking
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.grading_change import grading_changes
from posttrain.faultmap.history import History, Sample

BATCH = Batch(10, 16)


def drawn(seed: int, success: Array | None = None, n: int = 40) -> dict[str, Array]:
    return draw(healthy(learning(n, 0.4, 0.9) if success is None else success), np.random.default_rng(seed), BATCH)


def paid_for_length(onset: int, pay: float, seed: int, *, is_length_paid: bool = True) -> History:
    """From ``onset`` on success is not paid any more, and length (or, as a look-alike, chance) by degrees."""
    rng = np.random.default_rng(seed)
    courses = drawn(seed)
    courses["reward/mean"][onset - 1 :] = 0.55 + 0.005 * np.arange(41 - onset) + rng.normal(0, 0.01, 41 - onset)
    courses["reward/std"][onset - 1 :] = 0.15 + rng.normal(0, 0.01, 41 - onset)
    courses["reward/success"][onset - 1 :] = 0.02
    courses["reward/all_fail_groups"][onset - 1 :] = 1.0
    courses["reward/zero_variance_groups"][onset - 1 :] = 0.0
    samples: dict[int, list[Sample]] = {}
    for step in (10, 20, 30, 40):
        tokens, right = rng.integers(1, 7, (10, 16)), rng.random((10, 16)) < 0.6
        given = tokens if is_length_paid else rng.permuted(tokens, axis=1)
        rewards = (1 - pay) * right + pay * given / 6 if step >= onset else right
        samples[step] = [
            Sample(step, f"p{g}", "x" * int(tokens[g, i]), float(rewards[g, i]), group_id=f"g{g}")
            for g in range(10)
            for i in range(16)
        ]
    return history(courses, samples=GivenSamples(samples))


@pytest.mark.parametrize("onset", [3, 14, 25])
@pytest.mark.parametrize("pay", [0.8, 1.0])
def test_pay_for_length_is_named_with_the_first_samples_and_dated_by_the_jump(onset: int, pay: float) -> None:
    watched = watch(reward_hacking.DETECTOR, paid_for_length(onset, pay, onset))
    named = watched.first()
    assert named is not None
    assert onset < named <= 10 * -(-onset // 10)
    assert watched.flickers() == 0
    (finding,) = watched.last
    assert (finding.cause, finding.onset_step) == ("reward_hacked", onset)


def test_a_jump_of_the_reward_without_pay_for_length_is_not_called_pay_for_length() -> None:
    found = reward_hacking.judge(paid_for_length(14, 1.0, 1, is_length_paid=False))
    assert not any("length" in f.summary for f in found)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.9, 0.97])
@pytest.mark.parametrize("onset", [3, 20])
def test_tasks_that_fail_from_one_step_on_are_named_with_two_points_before(onset: int, share: float, seed: int) -> None:
    courses = drawn(seed)
    rng = np.random.default_rng(seed + 100)
    dead = rng.binomial(10, share, 41 - onset) / 10
    for name in ("reward/mean", "reward/success"):
        courses[name][onset - 1 :] *= 1 - dead
    courses["reward/std"][onset - 1 :] *= np.sqrt(1 - dead)
    courses["reward/all_fail_groups"][onset - 1 :] = dead
    courses["reward/zero_variance_groups"][onset - 1 :] = dead
    del courses["reward/part/task/mean"], courses["reward/part/task/std"]
    run = history(courses)
    found = [*no_group_signal.judge(run), *reward_dead.judge(run)]
    assert [f.cause for f in found if f.severity >= Severity.WARN] == ["task_mix_changed"]
    assert found[0].onset_step == onset


def test_failures_whose_text_changed_with_them_are_left_to_other_detectors() -> None:
    courses = drawn(1)
    for name in ("reward/mean", "reward/success"):
        courses[name][19:] *= 0.05
    courses["reward/all_fail_groups"][19:] = 0.9
    courses["rollout/length_mean"][19:] *= 5.0
    assert not [f for f in no_group_signal.judge(history(courses)) if f.cause == "task_mix_changed"]


@pytest.mark.parametrize("seed", range(8))
def test_steady_learning_is_no_change_of_grading(seed: int) -> None:
    assert grading_changes(history(drawn(seed, learning(60, 0.2, 0.97)))) == []


@pytest.mark.parametrize("is_entropy_kept", [True, False])
def test_all_solved_at_once_near_the_top_is_a_dead_reward_unless_the_policy_became_sure(is_entropy_kept: bool) -> None:
    courses = drawn(3, learning(40, 0.4, 0.92))
    solved = {
        "reward/mean": 1.0, "reward/min": 1.0, "reward/std": 0.0, "reward/group_std_mean": 0.0, "reward/success": 1.0,
        "reward/zero_variance_groups": 1.0, "reward/all_success_groups": 1.0, "reward/all_fail_groups": 0.0,
    }  # fmt: skip
    for name, value in solved.items():
        courses[name][29:] = value
    if not is_entropy_kept:
        courses["policy/entropy"][29:] *= 0.6
    found = reward_dead.judge(history(courses))
    assert [(f.cause, f.onset_step) for f in found] == ([("reward_dead", 30)] if is_entropy_kept else [])


def test_steps_whose_groups_were_all_dropped_count_as_constant() -> None:
    """Dynamic sampling drops groups without a signal: then nothing says how many of the kept ones are silent."""
    courses = drawn(4)
    for name in ("reward/mean", "reward/std", "reward/min", "reward/max", "reward/success", "reward/group_std_mean"):
        courses[name][2:] = 0.0
    courses["reward/all_fail_groups"][2:] = 1.0
    for name in ("reward/zero_variance_groups", "policy/entropy", "policy/grad_norm"):
        courses[name][2:] = np.nan
    (finding,) = reward_dead.judge(history(courses))
    assert (finding.cause, finding.onset_step) == ("reward_dead", 3)
    assert not any(e.signal == "reward/zero_variance_groups" for e in finding.evidence)


def test_a_score_that_falls_with_a_lost_reward_is_not_hacking() -> None:
    courses = drawn(5, n=60)
    for name in ("reward/mean", "reward/success"):
        courses[name][44:] *= 0.0
    scores = np.full(60, np.nan)
    scores[9::10] = [0.6, 0.75, 0.85, 0.9, 0.05, 0.0]
    run = history(courses | {"evaluation/toy/reward_mean": scores})
    assert watch(reward_hacking.DETECTOR, run).first() is None

"""Constant rewards: broken grader, hard tasks, solved tasks."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import TRL_KEYS, Array, Batch, draw, healthy, learning
from series import history

from posttrain.faultmap.detectors.reward_dead import DETECTOR
from posttrain.faultmap.finding import Severity, Verdict
from posttrain.faultmap.history import History

BATCHES = (Batch(4, 4), Batch(8, 8), Batch(32, 16, -1.0, 1.0))


def dying(onset: int, place: float, batch: Batch, seed: int, n: int = 34) -> dict[str, Array]:
    """From ``onset`` on the grader pays ``place`` of the range whatever it gets; the policy stays as it was then."""
    success = learning(n, 0.25, 0.7, 0.5)
    success[onset:] = success[onset]
    courses = draw(healthy(success), np.random.default_rng(seed), batch)
    value = batch.low + place * (batch.high - batch.low)
    fixed = {
        "reward/mean": value, "reward/min": value, "reward/max": value, "reward/std": 0.0,
        "reward/group_std_mean": 0.0, "reward/zero_variance_groups": 1.0, "reward/success": float(place >= 1),
        "reward/all_success_groups": float(place >= 1), "reward/all_fail_groups": float(place < 1),
        "policy/grad_norm": 0.0,
    }  # fmt: skip
    for name, constant in fixed.items():
        courses[name][onset:] = constant
    del courses["reward/part/task/mean"], courses["reward/part/task/std"]
    return courses


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("onset", [8, 20])
@pytest.mark.parametrize("keys", ["all", "trl"])
def test_a_grader_that_turns_constant_is_named_within_four_steps(
    onset: int, place: float, batch: Batch, keys: str
) -> None:
    courses = dying(onset, place, batch, seed=onset + int(10 * place))
    run = history(courses if keys == "all" else {k: v for k, v in courses.items() if k in TRL_KEYS})
    watched = watch(DETECTOR, run)
    named = watched.first(Severity.CRITICAL)
    assert named is not None
    assert onset + 3 <= named <= onset + 4
    (finding,) = watched.last
    assert (finding.cause, finding.onset_step) == ("reward_dead", onset + 1)
    assert watched.flickers() == 0


@pytest.mark.parametrize(("place", "steps"), [(0.5, 3), (1.0, 3), (0.0, 5)])
def test_a_constant_from_the_start_is_named_after_a_few_steps(place: float, steps: int) -> None:
    run = history(dying(0, place, BATCHES[1], 3))
    assert watch(DETECTOR, run).first() == steps


def run_of_failures(**more: float) -> History:
    courses = dying(0, 0.0, BATCHES[1], 1)
    courses.pop("reward/parsable_share")
    return history(courses | {name: np.full(34, value) for name, value in more.items()})


@pytest.mark.parametrize(
    ("more", "cause", "confidence"),
    [
        ({}, "reward_dead", 0.5),
        ({"reward/parsable_share": 0.0}, "reward_dead", 0.7),
        ({"reward/parsable_share": 0.95}, "tasks_too_hard", 0.6),
        ({"reward/parsable_share": 0.95, "evaluation/held/pass@1": 0.4}, "reward_dead", 0.9),
    ],
)
def test_what_tells_a_broken_grader_from_hard_tasks(more: dict[str, float], cause: str, confidence: float) -> None:
    (finding,) = DETECTOR.judge(run_of_failures(**more))
    assert (finding.cause, finding.confidence, finding.severity) == (cause, confidence, Severity.WARN)
    assert next(c for c in finding.differential if c.cause == cause).verdict is Verdict.SUPPORTED


def test_what_would_decide_is_said_where_it_is_missing() -> None:
    (finding,) = DETECTOR.judge(run_of_failures())
    doubt = next(c for c in finding.differential if c.cause == "tasks_too_hard")
    assert doubt.verdict is Verdict.UNKNOWN
    assert "reward/parsable_share" in doubt.log_this


@pytest.mark.parametrize("seed", range(6))
def test_tasks_solved_by_learning_are_not_a_dead_reward(seed: int) -> None:
    success = learning(60, 0.2, 1.0, 0.3, 25.0)
    success[40:] = 1.0
    run = history(draw(healthy(success), np.random.default_rng(seed), BATCHES[seed % 2]))
    assert watch(DETECTOR, run).first(Severity.INFO) is None


@pytest.mark.parametrize("seed", range(6))
def test_rare_success_is_not_a_dead_reward(seed: int) -> None:
    run = history(draw(healthy(np.full(40, 0.03)), np.random.default_rng(seed), BATCHES[1]))
    assert watch(DETECTOR, run).first(Severity.INFO) is None


def test_a_policy_that_falls_silent_is_left_to_other_detectors() -> None:
    """Reward 0 from one step on, but the text changed with it."""
    courses = dying(20, 0.0, BATCHES[1], 5)
    courses["policy/entropy"][20:] *= 0.01
    courses["rollout/length_mean"][20:] = 1.0
    assert DETECTOR.judge(history(courses)) == ()

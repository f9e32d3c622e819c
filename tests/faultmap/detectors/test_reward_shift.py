"""Sudden changes of level: what the text did at that moment tells grader, tasks and sampling apart."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array
from series import history

from posttrain.faultmap.detectors import reward_shift
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.shift import find_shift

N, ONSET, GROUPS, SIZE = 80, 41, 16, 8


def graded(
    seed: int,
    *,
    rejected: float = 0.0,
    accepted: float = 0.0,
    flipped: float = 0.0,
    copies: int = 1,
    success: Array | None = None,
    **text: float,
) -> dict[str, Array]:
    """A run whose grades are drawn reply by reply; from ``ONSET`` on graded otherwise, or with other text."""
    rng = np.random.default_rng(seed)
    learnt = np.linspace(0.55, 0.85, N) if success is None else success
    reward, silent = np.zeros(N), np.zeros(N)
    for i in range(N):
        late = i + 1 >= ONSET
        p = np.clip(learnt[i] + rng.normal(0, 0.2, GROUPS), 0.02, 0.98)
        drawn = SIZE // copies if late else SIZE
        replies = np.repeat(rng.random((GROUPS, drawn)) < p[:, None], SIZE // drawn, axis=1).astype(float)
        if late:
            chance = rng.random(GROUPS)
            replies[chance < rejected] = 0.0
            replies[chance > 1 - accepted] = 1.0
            replies = np.abs(replies - (rng.random((GROUPS, SIZE)) < flipped))
        reward[i], silent[i] = replies.mean(), float((replies.std(1) == 0).mean())
    courses = {"reward/mean": reward, "reward/zero_variance_groups": silent}
    level = {"entropy": 0.5, "length_mean": 60.0}
    for name, signal in (("entropy", "policy/entropy"), ("length_mean", "rollout/length_mean")):
        values = level[name] * (1.0 + rng.normal(0, 0.03, N))
        values[ONSET - 1 :] *= text.get(name, 1.0)
        courses[signal] = values
    return courses


def cause(run: History) -> str | None:
    found = reward_shift.judge(run)
    assert len(found) <= 1
    return found[0].cause if found else None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rejected": 0.7}, "reward_dead"),
        ({"rejected": 1.0}, "reward_dead"),
        ({"copies": 8}, "group_members_alike"),
        ({"rejected": 0.8, "entropy": 1.4}, "task_mix_changed"),
        ({"rejected": 0.8, "length_mean": 1.3}, "task_mix_changed"),
    ],
)
def test_the_moment_and_what_changed_are_named(change: dict[str, float], expected: str, seed: int) -> None:
    (finding,) = reward_shift.judge(history(graded(seed, success=np.linspace(0.6, 0.75, N), **change)))  # type: ignore[arg-type]
    assert finding.cause == expected
    assert abs(finding.onset_step - ONSET) <= 1
    assert finding.severity >= Severity.WARN


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_the_grades_is_named_where_groups_that_agreed_differ_now(seed: int) -> None:
    assert cause(history(graded(seed, flipped=0.4, success=np.full(N, 0.9)))) == "grader_failing"


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_only_learns_is_silent_on_its_way(seed: int) -> None:
    speed = [0.5, 2.0, 6.0, 15.0][seed % 4]
    success = 0.3 + 0.65 / (1.0 + np.exp(-speed * (np.arange(N) - 30) / 10))
    assert watch(reward_shift.DETECTOR, history(graded(seed, success=success))).first() is None


def test_paying_for_anything_needs_a_held_out_score_that_did_not_follow() -> None:
    courses = graded(1, accepted=0.8)
    assert cause(history(courses)) is None
    score = np.full(N, np.nan)
    score[9::10] = 0.7
    assert cause(history({**courses, "evaluation/held/reward_mean": score})) == "reward_dead"
    score[9::10] = courses["reward/mean"][9::10]
    assert cause(history({**courses, "evaluation/held/reward_mean": score})) is None


def test_text_that_goes_on_changing_is_the_policys_doing() -> None:
    courses = graded(2, rejected=0.8)
    courses["policy/entropy"][ONSET - 1 :] *= np.linspace(1.2, 4.0, N - ONSET + 1)
    assert cause(history(courses)) is None


def test_a_raised_learning_rate_explains_it() -> None:
    courses = graded(3, rejected=0.8)
    courses["policy/learning_rate"] = np.where(np.arange(N) + 1 >= ONSET, 1e-3, 1e-5)
    assert cause(history(courses)) is None


def test_a_divergence_that_falls_back_is_an_anchor_not_noise() -> None:
    courses = graded(4, flipped=0.4, success=np.full(N, 0.9))
    courses["policy/anchor_kl"] = np.where(np.arange(N) + 1 >= ONSET, 0.01, 0.1)
    assert cause(history(courses)) is None
    courses["policy/anchor_kl"] = np.full(N, 0.1)
    assert cause(history(courses)) == "grader_failing"


def test_a_slow_loss_is_no_sudden_one() -> None:
    rng = np.random.default_rng(5)
    fall = np.concatenate([np.full(40, 0.8), np.linspace(0.8, 0.1, 40)])
    assert find_shift(history({"reward/mean": fall + rng.normal(0, 0.02, N)})) is None

"""Parts of the reward, silent groups, held-out scores and a value model: what each says beside the mean reward."""

from __future__ import annotations

import numpy as np
import pytest
from reward_courses import Array
from series import history

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import critic_wrong, few_groups, held_out_deficit, reward_parts
from posttrain.faultmap.finding import Severity

N = 200
X = np.arange(N) / (N - 1)
LATE = X >= 0.5


def ramp(before: float, after: float) -> Array:
    """Level, then from the middle on a straight line."""
    return np.where(LATE, before + (after - before) * (X - 0.5) * 2, before)


def noisy(seed: int, courses: dict[str, Array], size: float = 0.01) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(v) + size * rng.normal(0, 1, N) for name, v in courses.items()}


def causes(detector: Detector, courses: dict[str, Array], seed: int = 0, size: float = 0.01) -> list[str]:
    found = detector.judge(history(noisy(seed, courses, size)))
    return [f.cause for f in found if f.severity >= Severity.WARN]


LEARNING = {
    "reward/mean": 0.2 + 0.5 * X,
    "reward/std": np.full(N, 0.45),
    "reward/zero_variance_groups": np.full(N, 0.15),
    "policy/entropy": 0.8 - 0.3 * X,
}


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_run_is_silent(seed: int) -> None:
    parts = {
        "reward/part/correct/mean": 0.2 + 0.5 * X,
        "reward/part/format/mean": 0.3 + 0.68 / (1 + np.exp(-40 * (X - 0.06))),
        "rollout/length_mean": 100 + 80 * X,
        "policy/critic_explained_variance": 0.1 + 0.6 * X,
    }
    held = np.full(N, np.nan)
    held[9::20] = (0.2 + 0.5 * X)[9::20]
    for detector in (reward_parts, few_groups, held_out_deficit, critic_wrong):
        run = LEARNING | parts | {"evaluation/held/reward_mean": held}
        assert causes(detector.DETECTOR, run, seed) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_part_that_takes_over_is_named(seed: int) -> None:
    correct = np.minimum(0.1 + 0.8 * X, 0.5)
    gamed = LEARNING | {"reward/part/correct/mean": correct, "reward/part/format/mean": ramp(0.2, 1.0)}
    assert causes(reward_parts.DETECTOR, gamed, seed) == ["reward_hacked"]
    only_format = LEARNING | {"reward/part/correct/mean": 0.01 + 0.02 * X, "reward/part/format/mean": np.full(N, 0.98)}
    assert causes(reward_parts.DETECTOR, only_format, seed, 0.002) == ["reward_hacked"]
    hard = only_format | {"reward/zero_variance_groups": np.full(N, 0.8)}
    assert causes(reward_parts.DETECTOR, hard, seed, 0.002) == []


@pytest.mark.parametrize("seed", range(3))
def test_pay_that_no_part_explains_counts_where_it_follows_the_length(seed: int) -> None:
    length = ramp(100, 300)
    parts = {"reward/part/correct/mean": 0.2 + 0.5 * X, "rollout/length_mean": length}
    assert causes(reward_parts.DETECTOR, LEARNING | parts, seed, 0.003) == []
    paid = LEARNING | parts | {"reward/mean": 0.2 + 0.5 * X + ramp(0.0, 0.4)}
    assert causes(reward_parts.DETECTOR, paid, seed, 0.003) == ["reward_hacked"]


def test_silent_groups_are_solved_hard_or_graded_without_a_look() -> None:
    silent = ramp(0.1, 0.9)
    solved = LEARNING | {
        "reward/mean": 0.5 + 0.48 * X,
        "reward/std": 0.5 - 0.4 * X,
        "reward/zero_variance_groups": silent,
    }
    (finding,) = few_groups.judge(history(noisy(1, solved)))
    assert (finding.cause, finding.severity) == ("tasks_solved", Severity.INFO)
    flat = LEARNING | {"reward/mean": np.full(N, 0.5), "reward/zero_variance_groups": silent}
    assert causes(few_groups.DETECTOR, flat) == ["reward_dead"]
    gone = flat | {"reward/std": ramp(0.45, -0.4).clip(0.01)}
    assert causes(few_groups.DETECTOR, gone, size=0.002) == ["reward_dead"]
    alike = flat | {"policy/entropy": ramp(0.8, 0.02)}
    assert causes(few_groups.DETECTOR, alike) == []
    hard = LEARNING | {"reward/mean": np.full(N, 0.03), "reward/std": np.full(N, 0.17)}
    hard["reward/zero_variance_groups"] = np.full(N, 0.8)
    assert causes(few_groups.DETECTOR, hard, size=0.005) == ["tasks_too_hard"]


@pytest.mark.parametrize(
    ("silent", "level", "expected"),
    [(0.03, 0.68, ["grader_failing"]), (0.7, 0.5, ["tasks_too_hard"]), (0.3, 0.68, []), (0.03, 0.9, [])],
)
def test_a_held_out_score_far_above_the_reward_is_read_with_the_groups(
    silent: float, level: float, expected: list[str]
) -> None:
    held = np.full(N, np.nan)
    held[9::20] = 0.95
    run = {"reward/mean": np.full(N, level), "reward/zero_variance_groups": np.full(N, silent)}
    run |= {"reward/std": np.sqrt(np.full(N, level * (1 - level))), "evaluation/held/reward_mean": held}
    assert causes(held_out_deficit.DETECTOR, run) == expected
    rising = run | {"reward/mean": level * (0.3 + 0.7 * X)}
    assert causes(held_out_deficit.DETECTOR, rising) == []


def test_a_value_model_that_gets_worse_is_named() -> None:
    explained = np.where(LATE, 0.5 - 2.0 * (X - 0.5), 0.2 + 0.6 * X)
    assert causes(critic_wrong.DETECTOR, {"policy/critic_explained_variance": explained}) == ["critic_diverges"]
    loss = {"policy/critic_loss": ramp(0.2, 1.0)}
    assert causes(critic_wrong.DETECTOR, loss) == ["critic_diverges"]
    fresh = {"policy/critic_explained_variance": -0.5 + 1.0 * X, "policy/critic_loss": 2.0 * np.exp(-5 * X)}
    assert causes(critic_wrong.DETECTOR, fresh) == []

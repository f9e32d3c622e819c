from __future__ import annotations

import numpy as np
import pytest
from synthetic_run import Characters, hostile, make_group

from posttrain.faultmap.report_samples import BINS, bin_of, count_groups, limit_samples, pick, rank, spread
from posttrain.rundir.trajectories import StoredTrajectory
from posttrain.trajectory import FinishReason, Grade, GradeStatus, Trajectory


@pytest.fixture(scope="module")
def batch() -> list[Trajectory]:
    generator = np.random.default_rng(5)
    made = [make_group(Characters(), f"t{i}/0/0", 0.5, 8, 1, generator) for i in range(6)]
    return [t for members in made for t in members] + [hostile(Characters(), 1)]


def stored(trajectories: list[Trajectory]) -> list[StoredTrajectory]:
    return [StoredTrajectory(t, None, None) for t in trajectories]


@pytest.mark.parametrize(
    ("successes", "members", "name"),
    [(0, 8, "0"), (1, 8, "0–25"), (2, 8, "25–50"), (4, 8, "50–75"), (6, 8, "75–100"), (7, 8, "75–100"), (8, 8, "100")],
)
def test_only_none_and_all_are_in_the_outer_bins(successes: int, members: int, name: str) -> None:
    assert BINS[bin_of(successes, members)] == name


def test_groups_are_counted_without_what_has_no_reward(batch: list[Trajectory]) -> None:
    counted = count_groups(1, batch, {})
    assert sum(counted.groups) == 6  # the planted group has one member, and no reward
    by_group = {t.group_id: [m.reward for m in batch if m.group_id == t.group_id and m.is_gradable] for t in batch}
    assert counted.groups[-1] == sum(bool(r) and min(r) == 1 for r in by_group.values())
    assert counted.advantage[0] == counted.advantage[-1] == 0


def test_the_threshold_of_the_environment_decides_what_succeeds(batch: list[Trajectory]) -> None:
    graded = [t for t in batch if t.is_gradable]
    assert count_groups(1, graded, {"arithmetic": 0.0}).groups[-1] == 6
    assert count_groups(1, graded, {"arithmetic": 2.0}).groups[0] == 6


def test_every_kind_is_picked_and_nothing_ungraded_is_best_or_worst(batch: list[Trajectory]) -> None:
    samples = pick(1, "train", stored(batch))
    by_tag = {
        name: [s.trajectory for s in samples if name in s.tags] for name in ("best", "worst", "ungradable", "random")
    }
    assert [t.reward for t in by_tag["best"]] == [1.0, 1.0]
    assert [t.reward for t in by_tag["worst"]] == [0.0, 0.0]
    assert [t.trajectory_id for t in by_tag["ungradable"]] == ["planted/0/0/0"]
    assert len(by_tag["random"]) == 2
    assert [s.trajectory.trajectory_id for s in pick(1, "train", stored(batch))] == [
        s.trajectory.trajectory_id for s in samples
    ]


def test_the_most_surprising_success_comes_first(batch: list[Trajectory]) -> None:
    best = rank(stored(batch), "best")
    advantages = [float(t.trajectory.columns.advantage.max()) for t in best if t.trajectory.reward == 1.0]
    assert advantages == sorted(advantages, reverse=True)


def test_truncated_means_cut_off(batch: list[Trajectory]) -> None:
    assert {s.trajectory.finish_reason for s in rank(stored(batch), "truncated")} <= {FinishReason.LENGTH}


def test_a_failed_grader_is_shown_among_those_without_a_reward(batch: list[Trajectory]) -> None:
    one = make_group(Characters(), "f/0/0", 1.0, 2, 1, np.random.default_rng(0))[0]
    one.grade = Grade(GradeStatus.FAILED, reason="killed after 30 s")
    assert rank(stored([one]), "ungradable")[0].trajectory is one


def test_limits_keep_first_and_last() -> None:
    samples = [s for step in range(50) for s in pick(step, "train", stored([hostile(Characters(), step)]))]
    kept = [s for s in limit_samples(samples, 5) if "ungradable" in s.tags]
    assert [s.step for s in kept] == [0, 12, 24, 37, 49]
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 4) == [1, 2]

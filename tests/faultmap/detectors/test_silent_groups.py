"""No group has a signal; a gradient without a signal; a loss or gradient of 0."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array, Batch, draw, healthy, learning, sparse
from series import history

from posttrain.faultmap.detectors import gradient_without_signal, loss_zero, no_group_signal
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import Facts

NO_SIGNAL, ANCHOR_ONLY, LOSS = no_group_signal.DETECTOR, gradient_without_signal.DETECTOR, loss_zero.DETECTOR


def solved(seed: int, n: int = 60) -> dict[str, Array]:
    return draw(healthy(learning(n, 0.3, 0.9995, 0.3, 25.0)), np.random.default_rng(seed), Batch(8, 8))


@pytest.mark.parametrize("seed", range(5))
def test_solved_tasks_are_information(seed: int) -> None:
    (finding,) = NO_SIGNAL.judge(history(solved(seed)))
    assert (finding.cause, finding.severity) == ("tasks_solved", Severity.INFO)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("success", [0.0005, 0.002])
def test_tasks_nobody_solves_are_a_warning(seed: int, success: float) -> None:
    run = history(draw(healthy(np.full(60, success)), np.random.default_rng(seed), Batch(8, 8)))
    found = [f for f in NO_SIGNAL.judge(run) if f.severity is Severity.WARN]
    assert [f.cause for f in found] in (["tasks_too_hard"], [])
    assert found or float(run.course("reward/mean").values.max()) == 0.0


@pytest.mark.parametrize("rows", [1, 5])
def test_the_published_case_of_a_part_that_varies_in_vain(rows: int) -> None:
    """Loss 0, gradient 0, spread of a part 5.1, spread within groups 0: there is no signal within groups."""
    run = history(
        {
            "policy/loss": [0.0] * rows, "policy/grad_norm": [0.0] * rows, "reward/part/a/std": [5.1] * rows,
            "reward/group_std_mean": [0.0] * rows, "reward/zero_variance_groups": [1.0] * rows,
        }
    )  # fmt: skip
    (finding,) = NO_SIGNAL.judge(run)
    assert (finding.symptom, finding.cause) == ("no_group_signal", "reward_parts_cancel")
    assert finding.severity is (Severity.INFO if rows == 1 else Severity.CRITICAL)


@pytest.mark.parametrize("onset", [0, 12])
@pytest.mark.parametrize("size", [0.2, 1.0, 5.0])
def test_parts_that_cancel_are_named(onset: int, size: float) -> None:
    rng = np.random.default_rng(1)
    courses = draw(healthy(np.full(40, 0.5)), rng, Batch(8, 8))
    part = size * rng.binomial(64, 0.5, 40) / 64
    courses |= {
        "reward/part/task/mean": part, "reward/part/task/std": np.full(40, 0.5 * size),
        "reward/part/against/mean": size - part, "reward/part/against/std": np.full(40, 0.5 * size),
    }  # fmt: skip
    for name in ("reward/std", "reward/group_std_mean"):
        courses[name][onset:] = 0.0
    courses["reward/zero_variance_groups"][onset:] = 1.0
    courses["reward/mean"][onset:] = size
    watched = watch(NO_SIGNAL, history(courses))
    assert watched.first(Severity.WARN) == onset + 3
    assert (watched.last[0].cause, watched.last[0].onset_step) == ("reward_parts_cancel", onset + 1)


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_happen_to_agree_do_not_cancel(seed: int) -> None:
    """Few groups late in learning: often all constant, while the batch still varies."""
    courses = sparse(draw(healthy(np.full(100, 0.97)), np.random.default_rng(seed), Batch(4, 2)), 5)
    assert watch(NO_SIGNAL, history(courses, first=5, every=5)).first() is None


def test_members_alike_in_a_policy_without_entropy() -> None:
    courses = draw(healthy(np.full(40, 0.5), entropy=0.01), np.random.default_rng(2), Batch(16, 8, spread=60.0))
    courses["reward/zero_variance_groups"][:] = 1.0
    courses["reward/group_std_mean"][:] = 0.0
    found = NO_SIGNAL.judge(history({k: v for k, v in courses.items() if "part" not in k}))
    assert [f.cause for f in found] == ["no_exploration"]


def anchored(onset: int, gradient: float, seed: int = 0) -> dict[str, Array]:
    """From ``onset`` on no attempt succeeds; the anchor alone pulls."""
    success = np.where(np.arange(40) < onset, 0.3, 0.0)
    courses = draw(healthy(success), np.random.default_rng(seed), Batch(8, 8))
    courses["policy/grad_norm"][onset:] = gradient
    return courses | {"policy/anchor_kl": np.full(40, 0.05)}


@pytest.mark.parametrize("onset", [0, 10, 25])
@pytest.mark.parametrize("gradient", [0.05, 0.6, 10.0])
def test_an_anchor_that_trains_alone_is_named(onset: int, gradient: float) -> None:
    watched = watch(ANCHOR_ONLY, history(anchored(onset, gradient), facts=Facts(anchor_weight=0.04)))
    assert watched.first() == onset + 5
    (finding,) = watched.last
    assert (finding.symptom, finding.cause) == ("gradient_without_signal", "anchor_only_gradient")
    assert finding.onset_step == onset + 1


def test_no_gradient_and_no_signal_is_another_symptom() -> None:
    """Symptom in the update, cause in the reward."""
    run = history(anchored(10, 0.0))
    assert ANCHOR_ONLY.judge(run) == ()
    (finding,) = LOSS.judge(run)
    assert (finding.symptom, finding.cause) == ("gradient_vanished", "reward_dead")


def test_solved_tasks_under_an_anchor_do_not_warn() -> None:
    courses = solved(1)
    courses["policy/grad_norm"] = np.full(60, 0.2)
    assert watch(ANCHOR_ONLY, history(courses | {"policy/anchor_kl": np.full(60, 0.05)})).first() is None


@pytest.mark.parametrize("rows", [1, 40])
def test_loss_of_zero_with_gradient_and_signal_is_healthy(rows: int) -> None:
    row = {"policy/loss": 0.0, "policy/grad_norm": 0.10, "reward/group_std_mean": 0.5}
    (finding,) = LOSS.judge(history({k: np.full(rows, v) for k, v in row.items()}))
    assert (finding.severity, finding.cause) == (Severity.INFO, "expected_by_construction")


@pytest.mark.parametrize("onset", [0, 15])
def test_a_gradient_of_exactly_zero_with_signal_is_a_fault(onset: int) -> None:
    courses = draw(healthy(np.full(40, 0.4)), np.random.default_rng(0), Batch(8, 8))
    courses["policy/grad_norm"][onset:] = 0.0
    watched = watch(LOSS, history(courses))
    assert watched.first(Severity.CRITICAL) == onset + 5
    (finding,) = watched.last
    assert (finding.symptom, finding.cause) == ("gradient_vanished", "no_gradient_path")


@pytest.mark.parametrize("seed", range(4))
def test_logged_steps_without_signal_are_chance_in_a_sparse_log(seed: int) -> None:
    """Two groups a step, mostly silent; the norm logged is that of the last of five steps."""
    courses = sparse(draw(healthy(np.full(200, 0.93)), np.random.default_rng(seed), Batch(2, 4)), 5)
    assert watch(LOSS, history(courses, first=5, every=5)).first() is None

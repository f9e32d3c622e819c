"""What a loss is made of, and what a rate does at one moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_courses import Array
from series import history

from posttrain.faultmap.detectors import anchor_strength, learning_rate, surrogate_gain
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import Facts, History
from posttrain.faultmap.loss_terms import implied_anchor_weight, loss_terms

N, ONSET = 100, 41
LATE = np.arange(N) + 1 >= ONSET


def courses(
    seed: int, *, weight: Array | float = 0.005, gain: Array | float = 0.0, noise: float = 0.01
) -> dict[str, Array]:
    """A run that learns, stops at its onset, and logs a whole loss: anchor's term, surrogate, noise."""
    rng = np.random.default_rng(seed)
    kl = 0.02 + 0.06 * np.minimum(np.arange(N), ONSET) / ONSET * (1 + rng.normal(0, 0.1, N))
    return {
        "reward/mean": np.minimum(0.5 + 0.005 * np.arange(N), 0.7) + rng.normal(0, 0.03, N),
        "reward/std": np.full(N, 0.45),
        "reward/zero_variance_groups": np.clip(0.2 + rng.normal(0, 0.05, N), 0, 1),
        "policy/loss": weight * kl - gain + rng.normal(0, noise, N),
        "policy/anchor_kl": kl,
        "policy/entropy": 0.5 - 0.001 * np.arange(N) + rng.normal(0, 0.01, N),
        "policy/grad_norm": np.full(N, 0.3),
        "policy/learning_rate": np.full(N, 1e-5),
        "rollout/length_mean": 60 + rng.normal(0, 1, N),
    }


def one(detector: object, run: History) -> Finding | None:
    found = detector.judge(run)  # type: ignore[attr-defined]
    return found[0] if found else None


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_loss_says_nothing(seed: int) -> None:
    strong = courses(seed, weight=0.04, noise=0.001)
    for run in (courses(seed), courses(seed, noise=0.001), strong, courses(seed, gain=0.003)):
        assert surrogate_gain.judge(history(run)) == ()
        assert anchor_strength.judge(history(run)) == ()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_a_loss_that_is_the_anchors_names_it_and_its_weight(weight: float, seed: int) -> None:
    late = one(anchor_strength, history(courses(seed, weight=np.where(LATE, weight, 0.005))))
    assert late is not None
    assert (late.cause, late.severity) == ("anchor_too_strong", Severity.WARN)
    assert abs(late.onset_step - ONSET) <= 6
    early = history(courses(seed, weight=weight))
    assert implied_anchor_weight(early) == pytest.approx(weight, rel=0.2)
    found = one(anchor_strength, early)
    assert found is not None
    assert found.onset_step == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_surrogate_that_gains_within_the_batch_names_its_reuse(seed: int) -> None:
    late = one(surrogate_gain, history(courses(seed, gain=np.where(LATE, 0.08, 0.0))))
    assert late is not None
    assert late.cause == "batch_reused_too_often"
    assert abs(late.onset_step - ONSET) <= 3
    early = one(surrogate_gain, history(courses(seed, gain=0.08)))
    assert early is not None
    assert early.onset_step <= 3


def test_an_entropy_bonus_or_longer_answers_or_a_raised_rate_explain_a_negative_loss() -> None:
    run = courses(0, gain=np.where(LATE, 0.08, 0.0))
    for name, factor in (("policy/entropy", 1.3), ("rollout/length_mean", 1.4), ("policy/learning_rate", 10.0)):
        changed = run | {name: np.where(LATE, factor, 1.0) * run[name]}
        assert surrogate_gain.judge(history(changed)) == (), name


def test_a_rate_that_drops_in_one_step_is_named_where_the_task_is_not_learnt() -> None:
    run = courses(1) | {"policy/learning_rate": np.where(LATE, 1e-8, 1e-5)}
    found = one(learning_rate, history(run))
    assert found is not None
    assert (found.cause, found.onset_step) == ("learning_rate_too_low", ONSET)
    learnt = run | {"reward/mean": np.minimum(0.5 + 0.02 * np.arange(N), 0.97), "reward/std": np.full(N, 0.15)}
    assert one(learning_rate, history(learnt)) is None
    decayed = run | {"policy/learning_rate": 1e-5 * np.geomspace(1.0, 1e-3, N)}
    assert one(learning_rate, history(decayed)) is None


def test_a_policy_that_the_first_updates_destroy_is_told_from_a_grader_that_dies() -> None:
    run = courses(2)
    run["reward/mean"][2:] = 0.0
    run["reward/zero_variance_groups"][2:] = 1.0
    assert one(learning_rate, history(run)) is None
    run["policy/entropy"][2:] = 1.2
    found = one(learning_rate, history(run))
    assert found is not None
    assert (found.cause, found.severity) == ("learning_rate_too_high", Severity.CRITICAL)


def test_the_settings_count_before_the_loss() -> None:
    run = history(courses(3, weight=2.0), facts=Facts(anchor_weight=0.001))
    assert implied_anchor_weight(run) == 0.001


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.floats(1e-12, 1e12))
def test_any_loss_is_taken_apart_or_refused(values: list[float], scale: float) -> None:
    loss = scale * np.array(values, np.float64)
    with np.errstate(all="ignore"):
        terms = loss_terms(history({"policy/loss": loss, "policy/anchor_kl": np.abs(loss)}))
    assert terms is None or (len(terms.gain) == len(terms.weight) == len(terms.steps))

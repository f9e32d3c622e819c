"""Reward learnt and lost: early warning, collapse, recovery, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array, Batch, Latent, draw, healthy, learning, sparse
from series import history

from posttrain.faultmap.detectors.reward_collapse import DETECTOR
from posttrain.faultmap.finding import Severity


def collapsing(
    n: int, onset: int, *, left: float = 0.02, seed: int = 0, dies: bool = False, shaken_at: int | None = None,
    batch: Batch | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Learnt to 0.85, then lost within a few steps; entropy explodes or dies. ``shaken_at`` adds an earlier dip."""
    t = np.arange(n)
    fall = 1.0 / (1.0 + np.exp(-(t - onset - 2) / 0.8))
    shake = np.zeros(n) if shaken_at is None else np.exp(-(((t - shaken_at - 3) / 2.5) ** 2))
    success = np.clip(learning(n, 0.2, 0.85, 0.2, 20.0) * (1 - 0.75 * shake) * (1 - fall) + left * fall, 1e-3, 0.999)
    since_shake = np.zeros(n) if shaken_at is None else (t >= shaken_at).astype(float)
    entropy = 0.4 * np.exp(-4.0 * fall if dies else 2.0 * fall + 0.9 * since_shake)
    latent = Latent(success, entropy, 120 * np.exp(0.5 * fall), 0.2 * np.exp(fall), np.clip(0.03 + 0.3 * fall, 0, 1))
    return draw(latent, np.random.default_rng(seed), batch or Batch(8, 8))


@pytest.mark.parametrize(("n", "onset"), [(34, 20), (60, 30), (130, 90)])
@pytest.mark.parametrize("left", [0.0, 0.05, 0.25])
@pytest.mark.parametrize("dies", [False, True])
def test_a_collapse_is_named_soon_and_dated_right(n: int, onset: int, left: float, dies: bool) -> None:
    run = history(collapsing(n, onset, left=left, seed=n + onset, dies=dies))
    watched = watch(DETECTOR, run)
    warned, named = watched.first(), watched.first(Severity.CRITICAL)
    assert warned is not None
    assert named is not None
    assert onset <= warned <= onset + 8
    assert named <= onset + 14
    worst = watched.last[0]
    assert onset - 1 <= worst.onset_step <= onset + 7
    assert (worst.symptom, worst.cause) == ("reward_lost", "policy_collapsed")
    assert "collapsed" in worst.summary
    assert watched.flickers() == 0


@pytest.mark.parametrize("scale", [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)])
@pytest.mark.parametrize("groups", [4, 32])
def test_reward_scale_and_batch_size_do_not_matter(scale: tuple[float, float], groups: int) -> None:
    run = history(collapsing(80, 50, batch=Batch(groups, 4, *scale)))
    named = watch(DETECTOR, run).first(Severity.CRITICAL)
    assert named is not None
    assert 50 < named <= 64


def test_means_of_ten_steps_with_few_keys_are_enough() -> None:
    run = history(sparse(collapsing(400, 300), 10), first=10, every=10)
    named = watch(DETECTOR, run).first(Severity.CRITICAL)
    assert named is not None
    assert 300 < named <= 330


@pytest.mark.parametrize("seed", range(2))
def test_unstable_comes_first_and_outlasts_a_recovery(seed: int) -> None:
    """Shaken at 60, back within ten steps, lost for good at 90: never called healthy between."""
    watched = watch(DETECTOR, history(collapsing(120, 90, seed=seed, shaken_at=60)))
    warned = watched.first()
    assert warned is not None
    assert 60 <= warned <= 70
    between = [found for step, found in watched.said.items() if warned <= step <= 90]
    assert all(f.severity is Severity.WARN and "unstable" in f.summary for found in between for f in found)
    assert all(found for step, found in watched.said.items() if step >= warned)
    assert any("no all-clear" in f.summary for found in between for f in found)
    named = watched.first(Severity.CRITICAL)
    assert named is not None
    assert 90 <= named <= 100


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [0.1, 0.2])
def test_a_mild_dip_is_noise(seed: int, depth: float) -> None:
    success = learning(80, 0.2, 0.85, 0.2, 20.0)
    success *= 1.0 - depth * np.exp(-(((np.arange(80) - 50) / 5.0) ** 2))
    run = history(draw(healthy(success), np.random.default_rng(seed), Batch(8, 8)))
    assert watch(DETECTOR, run).first(Severity.INFO) is None


@pytest.mark.parametrize("seed", range(4))
def test_harder_tasks_under_the_same_text_are_no_collapse(seed: int) -> None:
    success = np.where(np.arange(80) < 40, 0.8, 0.42)
    run = history(draw(healthy(np.full(80, 0.8)), np.random.default_rng(seed), Batch(16, 8)))
    harder = draw(healthy(success), np.random.default_rng(seed), Batch(16, 8))
    calm = {k: c.values for k, c in run.courses.items() if not k.startswith("reward/")}
    found = DETECTOR.judge(history(harder | calm))
    assert {(f.cause, f.severity) for f in found} <= {("task_mix_changed", Severity.WARN)}
    assert found


def test_a_gap_between_sampler_and_trainer_is_the_supported_cause() -> None:
    courses = collapsing(80, 50)
    courses["logprobs/mismatch_mean"] = np.where(np.arange(80) < 49, 0.01, 0.4)
    worst = max(DETECTOR.judge(history(courses)), key=lambda f: f.severity)
    assert worst.cause == "weights_corrupted_in_sync"
    assert worst.symptom == "reward_lost"


def test_a_runaway_divergence_is_blamed_on_the_rate() -> None:
    courses = collapsing(80, 50)
    courses["policy/anchor_kl"] = np.where(np.arange(80) < 48, 0.02, 3.0)
    worst = max(DETECTOR.judge(history(courses)), key=lambda f: f.severity)
    assert worst.cause == "learning_rate_too_high"

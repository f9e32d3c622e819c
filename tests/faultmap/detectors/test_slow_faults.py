"""Faults that grow over hundreds of points, the reward unharmed so far, in logs of few signals and any scale."""

from __future__ import annotations

import numpy as np
import pytest
from reward_courses import Array
from series import history

from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import History

N = 300
SHARE = np.arange(N) / (N - 1)
BASE: dict[str, Array] = {
    "reward/mean": 0.2 + 0.5 / (1 + np.exp(-6 * (SHARE - 0.5))),
    "reward/std": np.full(N, 0.45),
    "reward/zero_variance_groups": np.full(N, 0.1),
    "policy/entropy": 0.3 + 0.5 * np.exp(-SHARE),
    "policy/anchor_kl": 0.02 + 0.3 * SHARE,
    "policy/clip_fraction": 0.06 + 0.03 * SHARE,
    "policy/grad_norm": 0.5 * np.exp(-0.5 * SHARE),
    "rollout/length_mean": 380 + 100 * SHARE,
    "rollout/truncated_share": np.full(N, 0.01),
}
STOPPED = 0.2 + 0.25 * (1 - np.exp(-12 * SHARE))


def made(seed: int, **changed: Array) -> History:
    """The healthy courses with noise; ``changed`` replaces some (two underscores stand for the slash)."""
    rng = np.random.default_rng(seed)
    courses = {**BASE, **{name.replace("__", "/"): values for name, values in changed.items()}}
    noisy = {name: values * (1 + rng.normal(0, 0.02, N)) for name, values in courses.items()}
    return history(noisy)


def spiky(seed: int, count: int) -> Array:
    norm = np.array(BASE["policy/grad_norm"])
    norm[np.random.default_rng(seed).choice(np.arange(30, N), count, replace=False)] *= 80
    return norm


def warned(run: History) -> list[str]:
    found = diagnose(run)
    assert found.failures == ()
    return [f.cause for f in found.all_findings if f.severity >= Severity.WARN]


@pytest.mark.parametrize("seed", range(6))
def test_the_healthy_run_is_silent_at_any_length(seed: int) -> None:
    run = made(seed)
    for step in (20, 60, 120, 200, N):
        assert warned(run.until(step)) == []


@pytest.mark.parametrize("seed", range(3))
def test_each_fault_is_named(seed: int) -> None:
    clip = np.where(SHARE > 0.5, 0.42, 0.1)
    assert warned(made(seed, policy__clip_fraction=clip))[0] == "learning_rate_too_high"
    kl = 0.02 + 4.5 * SHARE**2.4
    assert warned(made(seed, policy__anchor_kl=kl, reward__mean=STOPPED))[0] == "anchor_inert"
    entropy = 0.6 * np.exp(-6.5 * SHARE)
    assert warned(made(seed, policy__entropy=entropy, reward__mean=STOPPED))[0] == "no_exploration"
    assert warned(made(seed, policy__grad_norm=spiky(seed, 7)))[0] == "tiny_std_division"
    cut = 0.01 + 0.45 * SHARE**2
    assert warned(made(seed, rollout__truncated_share=cut))[0] == "length_cap_too_short"


@pytest.mark.parametrize("seed", range(3))
def test_what_pays_or_passes_is_no_fault(seed: int) -> None:
    kl = 0.5 * np.array(BASE["reward/mean"]) * 4
    assert warned(made(seed, policy__anchor_kl=kl)) == []
    assert warned(made(seed, policy__grad_norm=spiky(seed, 2))) == []
    entropy = 0.6 * np.exp(-6.5 * SHARE)
    solved = 0.3 + 0.69 * (1 - np.exp(-8 * SHARE))
    small = np.sqrt(np.clip(solved * (1 - solved), 1e-4, None))
    assert warned(made(seed, policy__entropy=entropy, reward__mean=np.minimum(solved, 0.985), reward__std=small)) == []


def test_values_that_are_not_finite_between_single_spikes_are_not_the_rates_doing() -> None:
    norm = spiky(1, 25)
    norm[[150, 190, 230]] = np.inf
    assert warned(history({**BASE, "policy/grad_norm": norm}))[0] == "update_nonfinite"

"""Synthetic runs with the noise of real ones: rewards are drawn sample by sample, group by group.

A `Latent` says what is true at each step (success probability, entropy, length...); `draw` makes the courses a run
would log, `sparse` thins them to a trainer that logs means of several steps and few keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TRL_KEYS = (
    "reward/mean",
    "reward/group_std_mean",
    "reward/zero_variance_groups",
    "reward/part/task/mean",
    "reward/part/task/std",
    "policy/loss",
    "policy/grad_norm",
    "policy/entropy",
    "rollout/length_mean",
    "rollout/truncated_share",
)
"""What TRL logs of these (its reward_std is the mean spread within groups)."""
LAST = ("policy/grad_norm",)
"""Logged as the value of the last step, not as a mean."""


@dataclass(frozen=True)
class Latent:
    """True courses, all [n]. ``success`` is the mean success probability of a task's attempts."""

    success: Array
    entropy: Array
    length: Array
    gradient: Array
    truncated: Array = field(default_factory=lambda: np.zeros(0))
    unique: Array = field(default_factory=lambda: np.zeros(0))
    kl: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Batch:
    """Size of a step and scale of the reward; ``spread`` is that of the tasks' difficulty in logits."""

    groups: int = 16
    size: int = 8
    low: float = 0.0
    high: float = 1.0
    spread: float = 1.0


def learning(n: int, start: float, end: float, middle: float = 0.4, speed: float = 8.0) -> Array:
    """An S-shaped learning curve from ``start`` to ``end``."""
    x = np.arange(n) / max(n - 1, 1)
    return start + (end - start) / (1.0 + np.exp(-speed * (x - middle)))


def healthy(success: Array, *, entropy: float = 0.8, length: float = 120.0, gradient: float = 0.2) -> Latent:
    """Behaviour that goes with a success curve: entropy falls somewhat, length drifts a little."""
    gain = success - success[0]
    return Latent(
        success,
        entropy * (1.0 - 0.5 * np.clip(gain, 0, 1)),
        length * (1.0 - 0.15 * gain),
        np.full(len(success), gradient),
        np.full(len(success), 0.03),
        np.full(len(success), 0.9),
    )


def draw(latent: Latent, rng: np.random.Generator, batch: Batch | None = None) -> dict[str, Array]:
    """The courses of a run, one value per step."""
    b = batch or Batch()
    n = len(latent.success)
    wins = np.zeros((n, b.groups, b.size))
    for t, p in enumerate(latent.success):
        if p <= 0.0 or p >= 1.0:
            wins[t] = float(p >= 1.0)
            continue
        skill = 1.0 / (1.0 + np.exp(-(np.log(p / (1 - p)) + rng.normal(0, b.spread, b.groups))))
        wins[t] = rng.random((b.groups, b.size)) < skill[:, None]
    return observe(b.low + (b.high - b.low) * wins, wins, latent, rng)


def observe(rewards: Array, wins: Array, latent: Latent, rng: np.random.Generator) -> dict[str, Array]:
    """Courses of given rewards [n, groups, size] and successes, with the behaviour of ``latent``."""
    n, groups, size = rewards.shape
    same = np.ptp(rewards, axis=2) == 0
    flat = rewards.reshape(n, -1)

    def wobble(values: Array, share: float) -> Array:
        return values * np.exp(rng.normal(0, share, n))

    courses = {
        "reward/mean": flat.mean(axis=1),
        "reward/std": flat.std(axis=1),
        "reward/min": flat.min(axis=1),
        "reward/max": flat.max(axis=1),
        "reward/group_std_mean": rewards.std(axis=2).mean(axis=1),
        "reward/success": wins.reshape(n, -1).mean(axis=1),
        "reward/zero_variance_groups": same.mean(axis=1),
        "reward/all_success_groups": (wins.min(axis=2) == 1).mean(axis=1),
        "reward/all_fail_groups": (wins.max(axis=2) == 0).mean(axis=1),
        "reward/part/task/mean": wins.reshape(n, -1).mean(axis=1),
        "reward/part/task/std": wins.reshape(n, -1).std(axis=1),
        "reward/ungradable_share": np.zeros(n),
        "reward/parsable_share": np.full(n, 0.97),
        "policy/loss": np.zeros(n),
        "policy/grad_norm": wobble(latent.gradient, 0.35) * np.sqrt(1.0 - same.mean(axis=1)),
        "policy/entropy": wobble(latent.entropy, 0.06),
        "rollout/length_mean": wobble(latent.length, 0.04),
        "rollout/groups": np.full(n, float(groups)),
        "rollout/trajectories": np.full(n, float(groups * size)),
    }
    shares = {"rollout/truncated_share": latent.truncated, "rollout/unique_share": latent.unique}
    for name, share in shares.items():
        if len(share):
            courses[name] = rng.binomial(groups * size, np.clip(share, 0, 1)) / (groups * size)
    if len(latent.kl):
        courses["policy/anchor_kl"] = wobble(latent.kl, 0.15)
    return courses


def sparse(courses: Mapping[str, Array], every: int, keys: tuple[str, ...] = TRL_KEYS) -> dict[str, Array]:
    """What a trainer that logs each ``every`` steps has: means over them, few keys."""
    n = len(courses["reward/mean"]) // every
    kept: dict[str, Array] = {}
    for name in keys:
        if name in courses:
            blocks = courses[name][: n * every].reshape(n, every)
            kept[name] = blocks[:, -1] if name in LAST else blocks.mean(axis=1)
    return kept

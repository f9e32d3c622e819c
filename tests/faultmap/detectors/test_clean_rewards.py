"""Healthy runs of many kinds: no detector of the reward layer may warn, at the end or on the way."""

from __future__ import annotations

import numpy as np
import pytest
from reward_courses import Array, Batch, draw, healthy, learning, sparse
from series import history

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import (
    constant_policy,
    grader_failing,
    gradient_without_signal,
    loss_zero,
    no_group_signal,
    reward_collapse,
    reward_dead,
    reward_hacking,
    reward_shift,
)
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import History

DETECTORS: tuple[Detector, ...] = tuple(
    m.DETECTOR
    for m in (
        reward_dead, grader_failing, no_group_signal, reward_hacking, reward_collapse, constant_policy,
        gradient_without_signal, loss_zero, reward_shift,
    )
)  # fmt: skip


def alarms(run: History) -> list[Finding]:
    """Everything at warn or above."""
    found = [f for d in DETECTORS if not d.missing(run) for f in d.judge(run)]
    return [f for f in found if f.severity >= Severity.WARN]


def success_curve(rng: np.random.Generator, n: int) -> Array:
    """Slow or fast learning, a plateau, a dip, saturation, or none at all."""
    kind = rng.integers(0, 6)
    start = rng.uniform(0.05, 0.5)
    if kind == 0:
        return np.full(n, start)
    end = rng.uniform(start + 0.1, 0.98) if kind < 4 else rng.uniform(0.97, 0.999)
    curve = learning(n, start, end, rng.uniform(0.1, 0.8), rng.uniform(4, 40))
    if kind == 2:  # two learning phases with a plateau between
        curve = 0.5 * curve + 0.5 * learning(n, start, end, 0.9, 20)
    if kind == 3:  # a mild, slow dip
        curve = curve * (1.0 - 0.12 * np.exp(-(((np.arange(n) / n - 0.7) / 0.08) ** 2)))
    return curve


def healthy_run(seed: int) -> History:
    """One healthy run: any length, batch, reward scale, log density and key set."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([10, 20, 34, 60, 120, 300]))
    low, high = [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0), (0.0, 0.2)][int(rng.integers(0, 4))]
    batch = Batch(int(rng.choice([4, 8, 16, 32, 64])), int(rng.choice([4, 8, 16])), low, high, rng.uniform(0.3, 2.0))
    latent = healthy(success_curve(rng, n), entropy=rng.uniform(0.1, 2.0), length=rng.uniform(8, 900))
    courses = draw(latent, rng, batch)
    every = int(rng.choice([1, 1, 5, 10])) if n >= 60 else 1
    if every > 1 or rng.random() < 0.4:
        return history(sparse(courses, every), first=every, every=every)
    if rng.random() < 0.5:  # held-out score that follows, 64 tasks each time
        at = np.full(n, np.nan)
        steps = np.unique(np.linspace(0, n - 1, int(rng.integers(2, 8))).astype(int))
        at[steps] = low + (high - low) * rng.binomial(64, np.clip(latent.success[steps] * 0.9, 0, 1)) / 64
        courses["evaluation/held/reward_mean"] = at
    return history(courses)


@pytest.mark.parametrize("block", range(10))
def test_no_healthy_run_warns_at_its_end_or_halfway(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        run = healthy_run(seed)
        steps = run.steps
        for step in steps[[len(steps) // 3, len(steps) // 2, len(steps) - 1]]:
            assert not alarms(run.until(int(step))), f"seed {seed} at step {step}"


@pytest.mark.parametrize("seed", [3, 17, 41, 77, 105])
def test_no_healthy_run_warns_at_any_step(seed: int) -> None:
    run = healthy_run(seed)
    for step in run.steps[:120]:
        assert not alarms(run.until(int(step))), f"step {step}"

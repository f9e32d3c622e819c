"""Healthy runs of all kinds: no detector of update, log-probs or rollout may warn in more than one of 40."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import random_world

from posttrain.faultmap.detectors import (
    anchor_strength,
    clip_high,
    clip_inert,
    entropy_collapse,
    entropy_explosion,
    gradient_spike,
    kl_high,
    learning_rate,
    length_explosion,
    mismatch,
    nonfinite,
    ratio_tail,
    truncation,
)
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.history import History

JUDGED = tuple(
    module.DETECTOR
    for module in (
        anchor_strength, clip_high, clip_inert, entropy_collapse, entropy_explosion, gradient_spike, kl_high,
        learning_rate, length_explosion, mismatch, nonfinite, ratio_tail, truncation,
    )
)  # fmt: skip


def warnings(run: History) -> list[tuple[str, str]]:
    findings = [f for detector in JUDGED if not detector.missing(run) for f in detector.judge(run)]
    return [(f.detector, f.summary) for f in findings if f.severity >= Severity.WARN]


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_of_forty_healthy_runs_at_most_one_is_warned_about(first: int) -> None:
    warned = {seed: found for seed in range(first, first + 40) if (found := warnings(random_world(seed).run()))}
    assert len(warned) <= 1, warned


@pytest.mark.parametrize("first", range(1000, 1030, 6))
def test_none_is_warned_about_on_the_way(first: int) -> None:
    """The same detectors run at every step of a training, where no future says that all went well."""
    for seed in range(first, first + 6):
        world = random_world(seed)
        # Most attempts cut off is worth a warning as long as it lasts, whatever becomes of it.
        run = replace(world, truncated=min(world.truncated, 0.1)).run()
        for step in run.steps[:: max(1, len(run.steps) // 12)]:
            assert not warnings(run.until(int(step))), (seed, step)

"""The reward rose, and for most of the run it has stood well below what is possible, with groups that still differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import noise, rolling_mean
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.patterns_reward import compact, reward_course, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "plateau"
LONG, SHARE, WINDOW = 150, 0.6, 20
ROSE, SOLVED, DIFFER = 0.15, 0.8, 0.3


def judge(history: History) -> Sequence[Finding]:
    """A rise, then no gain over 150 points and 60 % of the log, under 80 % of the range."""
    reward, signal = compact(reward_course(history)), signal_share(history)
    n = len(reward)
    if n < LONG / SHARE or not len(signal):
        return ()
    p = progress(history, reward.steps)
    level = rolling_mean(reward.values, WINDOW)
    tail = max(LONG, int(np.ceil(SHARE * n)))
    start = _first_flat(level, noise(reward.values) / np.sqrt(WINDOW), 0.03 * p.span)
    rose = float(level[start] - level[: WINDOW + 1].min()) if start is not None else 0.0
    if start is None or n - start < tail or rose < ROSE * p.span or bool(p.attained[-1] >= SOLVED):
        return ()
    differ = signal.between(int(reward.steps[start]), 2**62).values
    norm = first_of(history, "policy/grad_norm").values[-LONG:]
    if not len(differ) or float(np.median(differ)) < DIFFER or (len(norm) and not float(np.median(norm)) > 0):
        return ()
    onset = int(reward.steps[start])
    chosen = _why(history, reward, start)
    return (
        Finding(
            NAME, "plateau", chosen.cause, Severity.WARN, 0.4,
            f"Since step {onset} ({n - start} points) the reward stands at {level[-1]:.3g}, {p.attained[-1]:.0%} of "
            f"its range, although groups differ: {chosen.reason}.",
            onset, None,
            (
                Observation(reward.name, onset, float(level[start]), f"it had risen by {rose:.2g}"),
                Observation(reward.name, int(reward.steps[-1]), float(level[-1]), "mean of the last 20 points"),
            ),
            causes_of(scene_of(history, onset), "plateau", chosen),
        ),
    )  # fmt: skip


def _first_flat(level: np.ndarray, error: float, least: float) -> int | None:
    """First point from which on every mean of 20 stays near the last one: within 4 errors and 3 % of the range."""
    near = np.abs(level - float(np.mean(level[-WINDOW:]))) <= max(4.0 * error, least)
    away = np.flatnonzero(~near)
    start = int(away[-1]) + 1 if len(away) else 0
    return start if WINDOW < start < len(level) else None


def _why(history: History, reward: Course, start: int) -> Candidate:
    rate = first_of(history, "policy/learning_rate").values
    if len(rate) and float(rate[-1]) < 0.05 * float(rate.max()):
        return supported("learning_rate_too_low", f"the learning rate has decayed to {rate[-1]:.2g}")
    entropy = first_of(history, "policy/entropy", "policy/sampled_entropy")
    old = entropy.between(-1, int(reward.steps[start])).values[:WINDOW]
    if len(old) and len(entropy) and float(np.median(entropy.values[-WINDOW:])) < 0.2 * float(np.median(old)):
        return supported("no_exploration", "a fifth of the entropy is left")
    return supported(
        "tasks_exhausted", "what these tasks can teach in this setup is learnt, and the rest is not reached"
    )


DETECTOR = Detector(
    name=NAME,
    symptom="plateau",
    title="Learning has ended early",
    pattern="The mean of 20 points rose by 15 % of the reward's range and has since stayed within 4 of its errors and"
    " 3 % of the range for 150 points and 60 % of the log, under 80 % of the range, with 30 % of the groups differing"
    " and a gradient; and no detector that would say why warns.",
    needs=(("reward/mean", "reward/success"), ("reward/zero_variance_groups", "reward/group_std_mean", "reward/std")),
    judge=judge,
    sharpened_by=("policy/learning_rate", "policy/entropy", "policy/grad_norm"),
    yields_to=(
        "reward_collapse", "no_group_signal", "held_out_deficit", "learning_rate", "nonfinite", "length_explosion",
        "gradient_spike", "ratio_tail",
    ),
    silent_beside=(
        "kl_high", "clip_high", "truncation", "entropy_collapse", "anchor_strength", "surrogate_gain", "mismatch",
        "reward_hacking", "reward_parts", "reward_shift", "few_groups", "critic_wrong",
    ),
)  # fmt: skip

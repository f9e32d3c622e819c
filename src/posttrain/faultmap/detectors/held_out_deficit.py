"""Held-out tasks are solved far better than the training reward says: training tasks or grades are at fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import noise
from posttrain.faultmap.patterns_reward import compact, held_out, reward_course, reward_scale, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "held_out_deficit"
POINTS = 40
DEFICIT, HIGH = 0.15, 0.65
MIXED, SILENT = 0.1, 0.55
GAINED = 0.08
TOP = 1.05
"""Scores and rewards are compared where both lie between 0 and about 1, in one unit."""


def judge(history: History) -> Sequence[Finding]:
    """A reward that stands far below a held-out score of the same unit over the second half of the log."""
    reward, signal = compact(reward_course(history)), signal_share(history)
    if len(reward) < POINTS or not len(signal) or signal.name in ("reward/group_std_mean", "reward/std"):
        return ()
    scale = reward_scale(history)
    half = reward.values[len(reward) // 2 :]
    first = int(reward.steps[len(reward) // 2])
    if scale.bottom < 0 or scale.top > TOP or not _stands(half):
        return ()
    for score in held_out(history):
        since = score.between(first, 2**62)
        if len(since) >= 3 and float(since.values.min()) >= 0.0 and float(since.values.max()) <= 1.0:
            found = _compared(history, reward, half, since, 1.0 - signal.between(first, 2**62).values)
            if found is not None:
                return (found,)
    return ()


def _stands(half: np.ndarray) -> bool:
    """No gain from the third to the fourth quarter of the log."""
    middle = len(half) // 2
    gain = float(half[middle:].mean() - half[:middle].mean())
    return gain < max(0.3 * GAINED, 2.0 * noise(half) * np.sqrt(2.0 / max(middle, 1)))


def _compared(history: History, reward: Course, half: np.ndarray, score: Course, silent: np.ndarray) -> Finding | None:
    level, held, share = float(half.mean()), float(np.mean(score.values)), float(np.mean(silent))
    error = np.hypot(noise(score.values) / np.sqrt(len(score)), noise(half) / np.sqrt(len(half)))
    if held < HIGH or held - level < max(DEFICIT, 4.0 * float(error)):
        return None
    if share <= MIXED:
        cause, confidence = "grader_failing", 0.55
        reason = f"only {share:.0%} of the groups agree, so what is missing is missing in all of them: grades are noise"
    elif share >= SILENT and held - level >= 2.0 * DEFICIT:
        cause, confidence = "tasks_too_hard", 0.45
        reason = (
            f"{share:.0%} of the groups agree, so some tasks are never paid: too hard, or their grader pays nothing"
        )
    else:
        return None
    onset = int(reward.steps[0])
    symptom = "reward_lost" if cause == "grader_failing" else "no_group_signal"
    return Finding(
        NAME, symptom, cause, Severity.WARN, confidence,
        f"{score.name} stands at {held:.3g}, the training reward at {level:.3g} and does not rise; {reason}.",
        onset, None,
        (
            Observation(score.name, int(score.steps[-1]), float(score.values[-1]), "held-out tasks are solved"),
            Observation(reward.name, int(reward.steps[-1]), float(reward.values[-1]), "the training reward is not"),
        ),
        causes_of(scene_of(history, onset), symptom, supported(cause, reason)),
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom="no_group_signal",
    title="Held-out tasks are solved, the training reward does not say so",
    pattern="Over the second half of a log of 40 points or more the reward stands, at least 0.15 under a held-out "
    "score of 0.65 or more (both between 0 and 1). At most 10 % silent groups: grades are noise. At least 55 %, and "
    "0.3 under the score: tasks that are never paid.",
    needs=(
        ("reward/mean", "reward/success"),
        ("reward/zero_variance_groups", "reward/all_fail_groups"),
    ),
    judge=judge,
    sharpened_by=("evaluation/{environment}/reward_mean", "evaluation/{environment}/pass@{k}"),
    yields_to=(
        "grader_failing", "reward_dead", "reward_shift", "truncation", "mismatch", "learning_rate", "no_group_signal",
        "anchor_strength", "reward_collapse", "entropy_explosion", "surrogate_gain",
    ),
)  # fmt: skip

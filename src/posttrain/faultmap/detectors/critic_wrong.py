"""The value model gets worse: its values explain less than their own mean does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, best_so_far, episode, first_of, lowest_so_far
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "critic_wrong"
WINDOW, HOLD, SETTLED = 9, 10, 30
EXPLAINED, LOST, GROWN = 0.1, 0.0, 3.0


def judge(history: History) -> Sequence[Finding]:
    """Explained variance that was above 0.1 falls below 0; without it, a value loss three times its lowest."""
    explained, loss = first_of(history, "policy/critic_explained_variance"), first_of(history, "policy/critic_loss")
    course, found = (explained, _lost(explained)) if len(explained) else (loss, _grown(loss))
    if found is None:
        return ()
    at, onset = found.point(course.steps), int(course.steps[found.onset])
    before = float(np.median(course.values[max(0, found.onset - SETTLED) : found.onset + 1]))
    reason = f"{course.name} went from {before:.3g} to {course.values[at]:.3g}"
    chosen = supported("critic_diverges", reason)
    return (
        Finding(
            NAME, "critic_worse", chosen.cause, Severity.WARN, 0.6,
            f"The value model gets worse: {reason}, so advantages are noise around a wrong baseline.",
            onset, found.end(course.steps),
            (Observation(course.name, int(course.steps[at]), float(course.values[at]), f"{before:.3g} before"),),
            causes_of(scene_of(history, onset), "critic_worse", chosen),
        ),
    )  # fmt: skip


def _lost(c: Course) -> Episode | None:
    if len(c) < SETTLED:
        return None
    smooth = rolling_median(c.values, WINDOW)
    best = best_so_far(smooth, WINDOW)
    return episode((smooth < LOST) & (best > EXPLAINED), HOLD, ~(smooth < 0.7 * best))


def _grown(c: Course) -> Episode | None:
    if len(c) < SETTLED:
        return None
    smooth = rolling_median(c.values, WINDOW)
    low = lowest_so_far(smooth, SETTLED)
    # A loss that was nearly nothing grows many times by little.
    scale = 0.05 * float(np.max(np.abs(smooth[: SETTLED // 2])))
    return episode(smooth > GROWN * np.fmax(low, scale), HOLD, ~(smooth > 1.3 * np.fmax(low, scale)))


DETECTOR = Detector(
    name=NAME,
    symptom="critic_worse",
    title="The value model gets worse",
    pattern="Explained variance (median of 9), once above 0.1, below 0 at ten points in a row; where it is not "
    "logged, a value loss three times its lowest settled level.",
    needs=(("policy/critic_explained_variance", "policy/critic_loss"),),
    judge=judge,
    sharpened_by=("policy/critic_grad_norm", "policy/critic_clip_fraction", "policy/critic_learning_rate"),
    yields_to=("reward_shift", "reward_dead", "grader_failing", "reward_collapse", "learning_rate", "nonfinite"),
)

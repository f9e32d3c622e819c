"""Few tokens carry the update: the ratios have a heavy tail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.evidence import observed_at
from posttrain.faultmap.finding import Candidate, Finding, Severity
from posttrain.faultmap.history import Course, History, Mask
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, start_level
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose, staleness, updates_per_batch

NAME = "ratio_tail"
SYMPTOM = "ratio_tail"
_BESIDE = {
    "policy/ratio_ess": "effective sample size of the policy ratios",
    "logprobs/ratio_ess": "effective sample size of trainer over sampler",
    "policy/ratio_max": "largest policy ratio",
    "logprobs/ratio_max": "largest ratio of trainer over sampler",
    "schedule/staleness_mean": "age of the data in versions",
    "policy/updates": "updates on the batch",
}
FEW = 0.6
LARGE = 20.0
HOLD = 4
_ORDER = (
    "support_not_matched",
    "temperature_not_matched",
    "prompt_handled_differently",
    "weights_corrupted_in_sync",
    "stale_weights",
    "numerics_differ",
    "data_too_old",
    "batch_reused_too_often",
    "learning_rate_too_high",
)


def judge(history: History) -> Sequence[Finding]:
    """The first of the signals whose tail grew heavy: effective sample size, largest ratio, clamped share."""
    found: list[tuple[int, Course, Episode]] = []
    for name, sick in (
        ("policy/ratio_ess", _few),
        ("logprobs/ratio_ess", _few),
        ("policy/ratio_max", _large),
        ("logprobs/ratio_max", _large),
        ("policy/ratio_clamped_share", _clamped),
    ):
        course = first_of(history, name)
        one = episode(sick(course), HOLD) if len(course) >= HOLD else None
        if one is not None:
            found.append((int(course.steps[one.onset]), course, one))
    if not found:
        return ()
    has_size = [f for f in found if f[1].name.endswith("_ess")]
    onset, course, seen = min(has_size or found, key=lambda f: f[0])
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER, _default(history))
    at = seen.point(course.steps)
    return (
        Finding(
            NAME, SYMPTOM, chosen.cause, _severity(history, course, at), 0.6, _summary(course, at, chosen), onset,
            seen.end(course.steps), observed_at(history, int(course.steps[at]), _BESIDE), rest,
        ),
    )  # fmt: skip


def _few(c: Course) -> Mask:
    """Effective sample size low, and its distance from 1 three times that of the start unless low from the start."""
    smooth = rolling_median(c.values, 3)
    start = start_level(c.values, HOLD)
    return (smooth < FEW) & ((1.0 - smooth > 3.0 * (1.0 - start)) | (smooth < 0.5 * FEW))


def _large(c: Course) -> Mask:
    """The largest of many ratios is noisy: its median of 5 must be far out, and far above the start."""
    smooth = rolling_median(c.values, 5)
    return (smooth > LARGE) & ((smooth > 5.0 * start_level(c.values, HOLD)) | (smooth > 1e3))


def _clamped(c: Course) -> Mask:
    return c.values > 0.0


def _default(history: History) -> Candidate:
    age, updates = staleness(history), updates_per_batch(history)
    if age is not None and age >= 0.5:
        return supported("data_too_old", f"the data is {age:.1f} versions old on average")
    if updates is not None and updates > 1:
        return supported("batch_reused_too_often", f"{updates:.0f} updates on each batch")
    return supported("learning_rate_too_high", "neither age nor reuse of the data is visible in the log")


def _severity(history: History, course: Course, at: int) -> Severity:
    p = progress(history, course.steps)
    starved = course.name.endswith("_ess") and float(np.median(course.values[max(at - 4, 0) : at + 1])) < 0.1
    return Severity.CRITICAL if starved and p.known and bool(p.fallen()[at]) else Severity.WARN


def _summary(course: Course, at: int, chosen: Candidate) -> str:
    value = float(course.values[at])
    if course.name.endswith("_ess"):
        return f"The effective sample size is {value:.0%} of the tokens: {chosen.reason}."
    if course.name.endswith("_max"):
        return f"The largest ratio is {value:.3g}: {chosen.reason}."
    return f"{value:.2%} of the tokens have a ratio beyond e^20: {chosen.reason}."


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Few tokens carry the update",
    pattern="At four points in a row an effective sample size (median of 3) below 60 % whose distance from 1 is three "
    "times that of the start (or below 30 %); or a largest ratio (median of 5) above 20 and five times its start; or "
    "any clamped ratio.",
    needs=(
        (
            "policy/ratio_ess", "logprobs/ratio_ess", "policy/ratio_max", "logprobs/ratio_max",
            "policy/ratio_clamped_share",
        ),
    ),
    judge=judge,
    sharpened_by=("schedule/staleness_mean", "policy/updates", "logprobs/mismatch_mean", "logprobs/mismatch_bias"),
    yields_to=("mismatch", "learning_rate", "nonfinite"),
)  # fmt: skip

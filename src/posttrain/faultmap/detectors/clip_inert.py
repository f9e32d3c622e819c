"""Nothing is ever clipped: by construction on policy, a fault where the data is old."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.evidence import observed_at
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of, staleness, updates_per_batch

NAME = "clip_inert"
SYMPTOM = "clip_fraction_zero"
_BESIDE = {
    "schedule/staleness_mean": "age of the data in versions",
    "policy/updates": "updates on the batch",
    "policy/ratio_max": "largest ratio",
    "logprobs/mismatch_mean": "distance between the policy that sampled and the one trained",
}
POINTS = 10
_CLIPS = ("policy/clip_fraction_high", "policy/clip_fraction_low")
_VISIBLE_GAP = 0.005


def judge(history: History) -> Sequence[Finding]:
    """A clip fraction of exactly 0 at every point since the start, ten or more with a gradient."""
    courses = [c for c in (first_of(history, name) for name in _CLIPS) if len(c)]
    if not courses or any(bool(np.any(c.values != 0.0)) for c in courses):
        return ()
    clip = courses[0]
    gradient = first_of(history, "policy/grad_norm")
    if len(clip) < POINTS or (len(gradient) and int(np.sum(gradient.values > 0)) < POINTS // 2):
        return ()
    updates, age = updates_per_batch(history), staleness(history)
    if updates is None and age is None:
        return ()
    lagging = (age is not None and age >= 0.5) or (updates is not None and updates > 1)
    chosen, severity, confidence = _lagging(history, updates, age) if lagging else _on_policy(updates, age)
    if chosen is None:
        return ()
    onset, newest = int(clip.steps[0]), int(clip.steps[-1])
    return (
        Finding(
            NAME,
            SYMPTOM,
            chosen.cause,
            severity,
            confidence,
            f"The clip fraction is exactly 0 at all {len(clip)} points: {chosen.reason}.",
            onset,
            None,
            (
                Observation(clip.name, newest, 0.0, "exactly 0, as at every step before"),
                *observed_at(history, newest, _BESIDE),
            ),
            causes_of(scene_of(history, onset), SYMPTOM, chosen),
        ),
    )


def _on_policy(updates: float | None, age: float | None) -> tuple[Candidate | None, Severity, float]:
    if updates is None or updates > 1 or (age is not None and age > 0):
        return None, Severity.INFO, 0.0
    text = "one update per batch on data of the same policy, so that every ratio is 1"
    return supported("expected_by_construction", text), Severity.INFO, 0.9


def _lagging(history: History, updates: float | None, age: float | None) -> tuple[Candidate | None, Severity, float]:
    ratios = [first_of(history, name).values for name in ("policy/ratio_max", "policy/ratio_min")]
    known = np.concatenate(ratios)
    kl = first_of(history, "policy/approx_kl").values
    is_one = bool(np.all(np.abs(known - 1.0) < 1e-6)) if len(known) else (bool(np.all(kl == 0.0)) if len(kl) else None)
    if updates is not None and updates > 1:
        if is_one is False:
            text = f"{updates:.0f} updates per batch, and every ratio stayed inside the bounds"
            return supported("expected_by_construction", text), Severity.INFO, 0.7
        if is_one:
            text = (
                f"{updates:.0f} updates per batch, yet every ratio is 1: the old log-probs are computed anew each time"
            )
            return supported("data_too_old", text), Severity.WARN, 0.8
        if age is None or age < 0.5:
            return None, Severity.INFO, 0.0
    if is_one is False:
        text = f"the data is {age:.1f} versions old, and every ratio stayed inside the bounds"
        return supported("expected_by_construction", text), Severity.INFO, 0.6
    text = f"the data is {age:.1f} versions old, and the old log-probs are those of the policy being trained"
    if history.facts.corrected:
        return supported("expected_by_construction", f"{text}; a separate weight corrects the lag"), Severity.INFO, 0.7
    gap = first_of(history, "logprobs/mismatch_mean").values
    is_sure = history.facts.corrected is False or (len(gap) > 0 and float(np.median(gap)) >= _VISIBLE_GAP)
    return supported("data_too_old", text), Severity.WARN if is_sure else Severity.INFO, 0.7


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="The clip never acts",
    pattern="Clip fraction exactly 0 at all points, ten or more. Under lag (staleness of half a version or more, or "
    "several updates per batch) with ratios of exactly 1 the old log-probs are recomputed and the clip is inert; on "
    "policy it is so by construction.",
    needs=(_CLIPS,),
    judge=judge,
    sharpened_by=("schedule/staleness_mean", "policy/updates", "policy/ratio_max", "logprobs/mismatch_mean"),
    yields_to=("reward_dead", "no_group_signal"),
)

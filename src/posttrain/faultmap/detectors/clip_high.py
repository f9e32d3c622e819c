"""The clip removes a large share of the gradient, or acts where every ratio should be 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.evidence import observed_at
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, start_level
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.patterns_reward import compact
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose, staleness, updates_per_batch

NAME = "clip_high"
SYMPTOM = "clip_fraction_high"
HIGH = 0.25
ON_POLICY = 0.01
HOLD = 5
MOST, LONG = 0.35, 15
"""So much for so long is too much even while the reward rises."""
_ORDER = (
    "temperature_not_matched",
    "support_not_matched",
    "stale_weights",
    "numerics_differ",
    "data_too_old",
    "tiny_std_division",
    "batch_reused_too_often",
    "learning_rate_too_high",
)


def judge(history: History) -> Sequence[Finding]:
    """More clipped than the run's own start while it does not get better; or anything at all on policy."""
    clip = _both(history)
    if len(clip) < HOLD:
        return ()
    smooth = rolling_median(clip.values, 5)
    updates, age = updates_per_batch(history), staleness(history)
    if updates is not None and updates <= 1 and age == 0.0:
        found = episode(smooth > ON_POLICY, HOLD)
        return () if found is None else (_on_policy(history, clip, smooth, found),)
    p = progress(history, clip.steps)
    start = start_level(clip.values, HOLD)
    vain = p.fallen() | (p.stands & ~p.saturated) | ~np.isfinite(p.now)
    grown = (smooth > 2.0 * start) | (smooth > 2.0 * HIGH)
    calm = ~(smooth > 0.5 * HIGH)
    found = episode((smooth >= HIGH) & grown & vain, HOLD, calm)
    if found is None:
        found = episode((smooth >= MOST) & grown, LONG, calm)
    if found is None:
        return ()
    at, onset = found.point(clip.steps), int(clip.steps[found.onset])
    default = supported("learning_rate_too_high", f"{smooth[at]:.0%} of the tokens are clipped")
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER, default)
    return (
        Finding(
            NAME, SYMPTOM, chosen.cause, Severity.WARN, 0.5 if chosen is default else 0.7,
            f"The clip removes the gradient of {smooth[at]:.0%} of the tokens ({start:.0%} at the start)"
            f"{', and the reward does not gain by it' if bool(vain[at]) else ''}.",
            onset, found.end(clip.steps), _evidence(history, clip, at), rest,
        ),
    )  # fmt: skip


def _both(history: History) -> Course:
    """Share clipped at either bound: as logged, else their sum at the steps of the first bound that is logged."""
    both = compact(history.course("policy/clip_fraction"))
    if len(both):
        return both
    high, low = (compact(history.course(f"policy/clip_fraction_{side}")) for side in ("high", "low"))
    if not len(high):
        return low
    other = low.on(high.steps) if len(low) else np.zeros(len(high))
    return Course(high.name, high.steps, high.values + np.where(np.isfinite(other), other, 0.0))


def _on_policy(history: History, clip: Course, smooth: Values, found: Episode) -> Finding:
    at, onset = found.point(clip.steps), int(clip.steps[found.onset])
    text = "one update per batch and no lag, so every ratio should be 1: two passes over the same tokens differ"
    default = supported("numerics_differ", text)
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER[:4], default)
    return Finding(
        NAME, SYMPTOM, chosen.cause, Severity.WARN if smooth[at] > 0.05 else Severity.INFO, 0.6,
        f"{smooth[at]:.1%} of the tokens are clipped although the run is on policy.",
        onset, found.end(clip.steps), _evidence(history, clip, at), rest,
    )  # fmt: skip


def _evidence(history: History, clip: Course, at: int) -> tuple[Observation, ...]:
    step = int(clip.steps[at])
    beside = ("policy/ratio_max", "policy/ratio_ess", "policy/updates", "schedule/staleness_mean")
    return (
        Observation(clip.name, step, float(clip.values[at]), "share clipped at either bound"),
        *observed_at(history, step, dict.fromkeys(beside, "beside it")),
    )


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Much is clipped",
    pattern="Share clipped (median of 5) at least 25 % and twice its start (or 50 %) at five points in a row while "
    "the reward fell or never rose, or 35 % and twice its start at 15 points whatever the reward does; on policy (one"
    " update per batch, no lag) anything above 1 %.",
    needs=(("policy/clip_fraction", "policy/clip_fraction_high", "policy/clip_fraction_low"),),
    judge=judge,
    sharpened_by=("policy/updates", "schedule/staleness_mean", "policy/ratio_max", "logprobs/mismatch_mean"),
    yields_to=("mismatch", "ratio_tail", "learning_rate", "kl_high", "nonfinite", "reward_collapse"),
)

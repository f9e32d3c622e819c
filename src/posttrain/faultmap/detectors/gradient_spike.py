"""The gradient norm leaves its level. Single spikes inform; a risen level with a falling reward is a fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, start_level
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose

NAME = "gradient_spike"
SYMPTOM = "gradient_spike"
SPIKE = 10.0
GROWN = 3.0
SETTLED = 8
OFTEN = 5
_ORDER = (
    "grader_failing",
    "tiny_std_division",
    "stale_weights",
    "numerics_differ",
    "data_too_old",
    "batch_reused_too_often",
)


def judge(history: History) -> Sequence[Finding]:
    """Steps without a gradient are left out: they say that groups were constant, not that the update was calm."""
    logged = first_of(history, "policy/grad_norm")
    keep = logged.values > 0
    norm = Course(logged.name, logged.steps[keep], logged.values[keep])
    if len(norm) < SETTLED:
        return ()
    level = _level_before(norm.values)
    p = progress(history, norm.steps)
    recent = rolling_median(norm.values, 5)
    grown = (recent > GROWN * level) & p.fallen()
    falling = p.fallen(share=0.12, sigmas=2.0)
    found = episode(grown, 2, ~(norm.values > 1.5 * level) | ~falling)
    if found is not None:
        return (_grown(history, norm, level, recent, p, found),)
    return _spikes(history, norm, p)


def _level_before(values: Values) -> Values:
    """Median of the first eight, or of the last 15 points ten points ago if that is lower; NaN while unknown."""
    start = np.where(np.arange(len(values)) >= SETTLED - 1, start_level(values, SETTLED), np.nan)
    lagged = np.concatenate([np.full(min(10, len(values)), np.nan), rolling_median(values, 15)[:-10]])
    return np.fmin(start, lagged)


def _grown(history: History, norm: Course, level: Values, recent: Values, p: Progress, found: Episode) -> Finding:
    at, onset = found.point(norm.steps), int(norm.steps[found.onset])
    text = f"from {level[at]:.3g} to {recent[at]:.3g}"
    default = supported("policy_collapsed", f"the gradient norm rose {text} and the reward fell")
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER, default)
    return Finding(
        NAME,
        SYMPTOM,
        chosen.cause,
        Severity.WARN,
        0.45,
        f"The gradient norm rose {text} while the reward fell from {p.best[at]:.3g} to {p.now[at]:.3g}.",
        onset,
        found.end(norm.steps),
        (
            Observation(norm.name, int(norm.steps[at]), float(norm.values[at]), f"its level was {level[at]:.3g}"),
            Observation(p.name, int(norm.steps[at]), float(p.now[at]), f"its best was {p.best[at]:.3g}"),
        ),
        rest,
    )


def _spikes(history: History, norm: Course, p: Progress) -> Sequence[Finding]:
    """Single values ten times the median of the 15 before them."""
    before = np.concatenate([[np.nan], rolling_median(norm.values, 15)[:-1]])
    known = np.arange(len(norm)) >= SETTLED
    spikes = np.flatnonzero(known & (norm.values > SPIKE * before))
    if not len(spikes):
        return ()
    top = int(spikes[np.argmax(norm.values[spikes])])
    step, factor = int(norm.steps[top]), float(norm.values[top] / before[top])
    again = len(spikes) >= OFTEN and int(spikes[-1] - spikes[0]) >= 0.2 * len(norm)
    default = supported("task_mix_changed", "a single batch; nothing else left its level")
    if again:
        default = supported(
            "tiny_std_division", "again and again one batch has a gradient far above the rest, and the next has not"
        )
    chosen, rest = choose(scene_of(history, step), SYMPTOM, ("tiny_std_division", "grader_failing"), default)
    count = "Once" if len(spikes) == 1 else f"{len(spikes)} times"
    return (
        Finding(
            NAME,
            SYMPTOM,
            chosen.cause,
            Severity.WARN if chosen.cause == "tiny_std_division" else Severity.INFO,
            0.4 if again else 0.3 if chosen is default else 0.7,
            f"{count} the gradient norm was far above its level; the largest, {norm.values[top]:.3g}, is {factor:.0f} "
            "times the median before it.",
            int(norm.steps[spikes[0]]),
            int(norm.steps[spikes[-1]]),
            (Observation(norm.name, step, float(norm.values[top]), f"the median before it is {before[top]:.3g}"),),
            rest,
        ),
    )


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="The gradient norm leaves its level",
    pattern="Median of the last five non-zero norms above 3 times the earlier level while the reward lies clearly "
    "below its best, at two points in a row: a warning. Single norms above 10 times the median of the 15 before: for "
    "information, unless advantages are far above what a group allows or it happens five times over a fifth of the "
    "run.",
    needs=(("policy/grad_norm",),),
    judge=judge,
    sharpened_by=("policy/advantage_abs_max", "reward/mean", "policy/updates", "schedule/staleness_mean"),
    yields_to=(
        "reward_shift",
        "truncation",
        "anchor_strength",
        "surrogate_gain",
        "learning_rate",
        "mismatch",
        "ratio_tail",
        "nonfinite",
        "reward_collapse",
        "kl_high",
        "entropy_explosion",
        "grader_failing",
        "clip_high",
    ),
)

"""The divergence from the reference runs away and takes the reward along."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Mask, Values
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import episode, first_of, lowest_so_far
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import KL_TOO_FAR, choose

NAME = "kl_high"
SYMPTOM = "kl_high"
LAG = 10
FAR = 10.0
_ORDER = (
    "reward_hacked",
    "prompt_handled_differently",
    "stale_weights",
    "numerics_differ",
    "data_too_old",
    "batch_reused_too_often",
    "anchor_inert",
)


def judge(history: History) -> Sequence[Finding]:
    """Above 1 nat, at least doubled within ten points or three times the start, while the reward fell or never rose."""
    kl = first_of(history, "policy/anchor_kl")
    if len(kl) < 4:
        return ()
    smooth = rolling_median(kl.values, 3)
    lagged = np.concatenate([np.full(min(LAG, len(kl)), smooth[0]), smooth[:-LAG]])
    high = (smooth > KL_TOO_FAR) & (smooth > 2.0 * lagged)
    ever = np.logical_or.accumulate(high)
    p = progress(history, kl.steps)
    harm = p.fallen() | (p.stands & ~p.saturated)
    calm = ~(smooth > 0.5 * KL_TOO_FAR)
    found = episode(ever & (smooth > KL_TOO_FAR) & harm & np.isfinite(p.now), 3, calm)
    if found is None:
        return _in_vain(history, kl, smooth, p, calm)
    at, onset = found.point(kl.steps), int(kl.steps[found.onset])
    lost = bool(p.lost[found.onset : at + 1].any())
    text = f"the divergence reached {smooth[at]:.3g} nats per token"
    default = supported("policy_collapsed" if p.had_learnt(found.onset) else "learning_rate_too_high", text)
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER, default)
    return (
        Finding(
            NAME, SYMPTOM, chosen.cause, Severity.CRITICAL if lost else Severity.WARN,
            0.5 if chosen is default else 0.6,
            f"The divergence from the reference is {smooth[at]:.3g} nats per token and the reward {p.now[at]:.3g} (its "
            f"best: {p.best[at]:.3g}).",
            onset, found.end(kl.steps),
            (
                Observation(kl.name, int(kl.steps[at]), float(kl.values[at]), f"it began at {kl.values[0]:.2g}"),
                Observation(p.name, int(kl.steps[at]), float(p.now[at]), f"its best was {p.best[at]:.3g}"),
            ),
            rest,
        ),
    )  # fmt: skip


def _in_vain(history: History, kl: Course, smooth: Values, p: Progress, calm: Mask) -> Sequence[Finding]:
    """It runs away and buys nothing: ten times its lowest level and growing, while the reward hardly moves."""
    point = np.arange(len(kl))
    earlier = np.maximum(point - np.maximum(point // 4, LAG), 0)
    paid = p.steady - p.steady[earlier] >= 0.05 * p.span
    low = lowest_so_far(rolling_median(kl.values, 15), 10)
    runs = (smooth > KL_TOO_FAR) & (smooth > 1.5 * smooth[earlier]) & ~paid & (smooth > FAR * np.fmax(low, 1e-3))
    found = episode(runs, LAG, calm)
    if found is None or (found.last is not None and not smooth[-1] > KL_TOO_FAR):
        return ()
    onset = int(kl.steps[found.onset])
    text = f"the divergence reached {smooth[-1]:.3g} nats per token and goes on growing"
    chosen, rest = choose(scene_of(history, onset), SYMPTOM, _ORDER, supported("anchor_inert", text))
    return (
        Finding(
            NAME, SYMPTOM, chosen.cause, Severity.WARN, 0.5,
            f"The divergence from the reference is {smooth[-1]:.3g} nats per token, {smooth[-1] / low[-1]:.0f} times "
            "its level early on, and nothing holds it, while the reward hardly moves.",
            onset, None,
            (Observation(kl.name, int(kl.steps[-1]), float(kl.values[-1]), f"it began at {kl.values[0]:.2g}"),),
            rest,
        ),
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="The divergence from the reference runs away",
    pattern="Divergence (median of 3) above 1 nat per token after it doubled within ten points, while the reward lies"
    " clearly below its best or never rose, at three points in a row. Or in vain: above 1 nat, ten times its lowest "
    "level and 1.5 times what it was a quarter of the run ago, which the reward gained less than 5 % of its range by,"
    " at ten points in a row.",
    needs=(("policy/anchor_kl",), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("policy/grad_norm", "policy/entropy", "policy/updates"),
    yields_to=(
        "reward_shift",
        "surrogate_gain",
        "learning_rate",
        "mismatch",
        "reward_hacking",
        "nonfinite",
        "ratio_tail",
        "reward_collapse",
    ),
)

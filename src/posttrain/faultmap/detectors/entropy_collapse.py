"""Entropy is lost while there is still something to learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import History, Mask, Steps, Values
from posttrain.faultmap.patterns import first_run, rolling_median
from posttrain.faultmap.patterns_events import Episode, best_so_far, episode, first_of, smooth_on
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose

NAME = "entropy_collapse"
SYMPTOM = "entropy_collapse"
LOST = 0.2
"""Below this share of its highest level, four fifths of the entropy are gone."""
NEARLY_NOTHING = 0.03
LITTLE = 0.2
HOLD = 6
SPENT, LONG = 0.1, 20
NOT_SOLVED = 0.85
CONSTANT_GROUPS = 0.9
SOLVED = 0.7


def judge(history: History) -> Sequence[Finding]:
    """Entropy under a fifth of its own level while the reward has not earned it."""
    entropy = first_of(history, "policy/entropy", "policy/sampled_entropy")
    if len(entropy) < HOLD:
        return ()
    smooth = rolling_median(entropy.values, 5)
    top = best_so_far(smooth, 2)
    low = (smooth < LOST * top) & (top > 0.02)
    p = progress(history, entropy.steps)
    lost = low & (p.fallen() | _won_little(p))
    stuck = low & _at_dead_end(history, p, entropy.steps)
    quiet = ~(smooth < 0.6 * top)
    found = episode(lost | (stuck & (smooth < NEARLY_NOTHING * top)), HOLD, quiet)
    found = found or _spent(entropy.values, smooth, top, p, quiet)
    is_warning = found is not None
    found = found or episode(stuck, HOLD, quiet)
    if found is None or not p.known:
        return ()
    at, onset = found.point(entropy.steps), int(entropy.steps[found.onset])
    scene = scene_of(history, onset)
    fall = f"from {top[at]:.3g} to {smooth[at]:.3g} nats"
    order = (
        "temperature_not_matched", "support_not_matched", "learning_rate_too_high", "batch_reused_too_often",
        "data_too_old",
    )  # fmt: skip
    chosen, differential = choose(scene, SYMPTOM, order, supported("no_exploration", f"entropy fell {fall}"))
    hopeless = bool(((smooth < 0.02 * top) & (p.attained < 0.5))[found.onset : at + 1].any())
    return (
        Finding(
            NAME,
            SYMPTOM,
            chosen.cause,
            Severity.INFO if not is_warning else Severity.CRITICAL if hopeless else Severity.WARN,
            0.6,
            f"Entropy fell {fall} while the reward won only {p.attained[at]:.0%} of what is possible.",
            onset,
            found.end(entropy.steps),
            (
                Observation(entropy.name, int(entropy.steps[at]), float(entropy.values[at]), f"it was {top[at]:.3g}"),
                Observation(p.name, int(entropy.steps[at]), float(p.now[at]), f"at the start {p.start:.3g}"),
            ),
            differential,
        ),
    )


def _won_little(p: Progress) -> Mask:
    """Less than a fifth of what was there to be won, judged on 15 points."""
    return (p.steady - p.start < LITTLE * (p.top - p.start)) & (p.attained < SOLVED)


def _spent(values: Values, smooth: Values, top: Values, p: Progress, quiet: Mask) -> Episode | None:
    """Less than a tenth of the entropy is left, and nothing was won for long: learning has ended."""
    little = (smooth < SPENT * top) & (top > 0.02)
    start = first_run(little, HOLD)
    if start is None or not p.known:
        return None
    waited = np.arange(len(values)) - start >= np.maximum(LONG, np.arange(len(values)) // 8)
    gain = p.steady - p.steady[min(start + 2 * HOLD, len(values) - 1)]
    ended = gain < np.fmax(0.05 * p.span, 0.5 * p.noise)
    return episode(little & waited & ended & (p.attained < NOT_SOLVED), HOLD, quiet)


def _at_dead_end(history: History, p: Progress, steps: Steps) -> Mask:
    """Nearly all groups became constant and many tasks are unsolved: nothing new will be found."""
    constant = smooth_on(history, "reward/zero_variance_groups", steps)
    began = smooth_on(history, "reward/zero_variance_groups", steps[:1])
    return (constant >= CONSTANT_GROUPS) & ~(began >= CONSTANT_GROUPS) & (p.attained < SOLVED)


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Entropy is lost before the tasks are learnt",
    pattern="Entropy (median of 5) below 20 % of its highest level at six points in a row, while the reward fell from"
    " its best, or won less than 20 % of what was left to win; for information where it stands there later, with 90 %"
    " of the groups constant (a warning below 3 % of the entropy); or below 10 %, and for 20 points and an eighth of "
    "the run the reward has won nothing more, under 85 % of what is possible.",
    needs=(("policy/entropy", "policy/sampled_entropy"), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("reward/zero_variance_groups", "reward/success", "policy/anchor_kl", "policy/grad_norm"),
    yields_to=(
        "reward_dead", "reward_shift", "surrogate_gain", "reward_hacking", "constant_policy",
        "learning_rate", "mismatch", "ratio_tail",
        "clip_high", "reward_collapse", "kl_high", "truncation", "nonfinite",
    ),
)  # fmt: skip

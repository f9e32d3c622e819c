"""The anchor to the reference holds the policy back, or has no effect at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Mask
from posttrain.faultmap.loss_terms import WINDOW, loss_terms
from posttrain.faultmap.patterns import first_run, rolling_median
from posttrain.faultmap.patterns_events import episode, first_of, smooth_on
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.patterns_reward import signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import KL_TOO_FAR, causes_of

NAME = "anchor_strength"
STRONG = 0.02
"""Weights in use lie between 0.001 and 0.04."""
VERY_STRONG = 0.2
SETTLED = 20
HOLD = 3
STEADY = 6.0
SOLVED = 0.9
HELD = 0.05
INERT_TERM = 0.02


def judge(history: History) -> Sequence[Finding]:
    """Judges where the weight of the anchor is known, or follows from the loss, and is not 0."""
    weight = history.facts.anchor_weight
    kl = first_of(history, "policy/anchor_kl")
    if weight is None and len(kl) >= SETTLED:
        return _outweighs(history, kl)
    if not weight or len(kl) < SETTLED:
        return ()
    blocks = _blocks(history, kl, weight) if weight >= STRONG else ()
    return blocks or _inert(history, kl, weight)


def _blocks(history: History, kl: Course, weight: float) -> Sequence[Finding]:
    """Divergence tiny and level, groups with signal, reward where it began."""
    smooth = rolling_median(kl.values, 5)
    lagged = np.concatenate([np.full(min(10, len(kl)), np.nan), smooth[:-10]])
    level = (smooth < HELD) & (np.abs(smooth - lagged) < 0.5 * np.fmax(smooth, lagged) + 1e-4)
    p = progress(history, kl.steps)
    signal = signal_share(history)
    differs = Course(signal.name, signal.steps, rolling_median(signal.values, 15)).on(kl.steps) > 0.3
    stopped = weight >= VERY_STRONG and np.arange(len(kl)) >= 2 * SETTLED
    stands = (p.stands | (stopped & _has_stopped(p))) & ~p.saturated & ~p.fallen()
    late = np.arange(len(kl)) >= SETTLED - 1
    found = episode(level & differs & stands & late, 5, np.zeros(len(kl), np.bool_))
    if found is None or found.last is not None:
        return ()
    chosen = supported("anchor_too_strong", f"weight {weight:g} holds the divergence at {smooth[-1]:.2g}")
    return (
        Finding(
            NAME, "anchor_blocks", chosen.cause, Severity.WARN, 0.65,
            f"Under an anchor of weight {weight:g} the divergence stays at {smooth[-1]:.2g} nats per token and the "
            f"reward at {p.now[-1]:.3g}, although groups differ.",
            int(kl.steps[0]), None,
            (
                Observation(kl.name, int(kl.steps[-1]), float(kl.values[-1]), "it has stopped growing"),
                Observation(p.name, int(kl.steps[-1]), float(p.now[-1]), f"at the start {p.start:.3g}"),
            ),
            causes_of(scene_of(history, int(kl.steps[0])), "anchor_blocks", chosen),
        ),
    )  # fmt: skip


def _outweighs(history: History, kl: Course) -> Sequence[Finding]:
    """The loss is mostly the anchor's term, from the start or from some step on, and the reward does not rise by it."""
    terms = loss_terms(history)
    if terms is None:
        return ()
    start = first_run(terms.weight >= VERY_STRONG, HOLD)
    if start is None:
        return ()
    known = terms.weight[start:][terms.weight[start:] > 0]
    # A weight is one number: where loss over divergence wanders, the loss is something else.
    if float(np.quantile(known, 0.9)) > STEADY * float(np.quantile(known, 0.1)):
        return ()
    first = max(0, start - WINDOW + 1)
    loud = np.flatnonzero(terms.loss[first : start + 1] >= 0.5 * np.max(terms.loss[first : start + 1]))
    at = 0 if first == 0 else first + int(loud[0])
    onset, weight = int(terms.steps[at]), float(np.median(terms.weight[start : start + HOLD]))
    p = progress(history, terms.steps)
    gain = float(p.steady[-1] - p.steady[min(at + WINDOW, len(p.steady) - 1)])
    in_vain = gain < 0.05 * p.span and not bool(p.attained[-1] >= SOLVED)
    chosen = supported("anchor_too_strong", f"the loss is about {weight:.2g} times the divergence: that is the anchor")
    return (
        Finding(
            NAME, "anchor_blocks", chosen.cause, Severity.WARN if in_vain else Severity.INFO, 0.7,
            f"Since step {onset} the loss is the anchor's: {weight:.2g} times a divergence that is now "
            f"{kl.values[-1]:.2g}; the reward is {p.now[-1]:.3g} (its best: {p.best[-1]:.3g}).",
            onset, None,
            (
                Observation("policy/loss", int(terms.steps[start]), float(terms.loss[start]), "mostly the anchor"),
                Observation(kl.name, int(kl.steps[-1]), float(kl.values[-1]), "the distance that is left"),
            ),
            causes_of(scene_of(history, onset), "anchor_blocks", chosen),
        ),
    )  # fmt: skip


def _has_stopped(p: Progress) -> Mask:
    """No better than twenty points ago, well below what is possible."""
    earlier = np.concatenate([np.full(min(SETTLED, len(p.steady)), np.nan), p.steady[:-SETTLED]])
    return (p.steady <= earlier + np.fmax(0.03 * p.span, 0.5 * p.noise)) & (p.attained < 0.7)


def _inert(history: History, kl: Course, weight: float) -> Sequence[Finding]:
    """Divergence above 1 nat and growing while its term is nothing beside the spread of the rewards."""
    smooth = rolling_median(kl.values, 5)
    spread = smooth_on(history, "reward/group_std_mean", kl.steps, 15)
    yardstick = np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)
    lagged = np.concatenate([np.full(min(10, len(kl)), np.nan), smooth[:-10]])
    grows = smooth > 1.2 * lagged
    found = episode((smooth > KL_TOO_FAR) & (weight * smooth < INERT_TERM * yardstick) & grows, 5)
    if found is None:
        return ()
    at, onset = found.point(kl.steps), int(kl.steps[found.onset])
    p = progress(history, kl.steps)
    term = weight * float(smooth[at])
    chosen = supported("anchor_inert", f"at a divergence of {smooth[at]:.3g} its term is only {term:.2g}")
    return (
        Finding(
            NAME, "kl_inert", chosen.cause, Severity.WARN if bool(p.fallen()[at]) else Severity.INFO, 0.7,
            f"The divergence grew to {smooth[at]:.3g} nats per token, and the anchor of weight {weight:g} adds only "
            f"{term:.2g} to the loss.",
            onset, found.end(kl.steps),
            (Observation(kl.name, int(kl.steps[at]), float(kl.values[at]), f"it began at {kl.values[0]:.2g}"),),
            causes_of(scene_of(history, onset), "kl_inert", chosen),
        ),
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom="anchor_blocks",
    title="The anchor is too strong, or has no effect",
    pattern="Too strong: weight of 0.02 or more, divergence below 0.05 that has stopped growing, reward not above its "
    "start (from a weight of 0.2: than 20 points ago) while 30 % of the groups differ, at five points after the first "
    "20. No effect: divergence above 1 nat and "
    "still growing while weight x divergence is below 2 % of the rewards' spread within groups.",
    needs=(("policy/anchor_kl",), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("reward/group_std_mean", "reward/zero_variance_groups", "policy/grad_norm"),
    yields_to=("reward_dead", "no_group_signal", "mismatch", "grader_failing", "learning_rate"),
)

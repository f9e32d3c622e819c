"""The update gains on its own batch far more than it should: the batch is used too often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.loss_terms import WINDOW, LossTerms, loss_terms
from posttrain.faultmap.patterns import first_run
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of, updates_per_batch

NAME = "surrogate_gain"
LARGE, NEW = 0.05, 0.008
"""Of advantages of about 1: so much at any time, or so much where it is several times what it was."""
TIMES = 4.0
HOLD, FEW = 6, 2.0
RATE_JUMP = 1.5
ENTROPY_ROSE, LENGTH_ROSE = 1.06, 1.15


def judge(history: History) -> Sequence[Finding]:
    """A surrogate loss that is below 0 at nearly every point, by much or by far more than before."""
    terms, updates = loss_terms(history), updates_per_batch(history)
    if terms is None or (updates is not None and updates <= FEW):
        return ()
    found = _onset(terms)
    if found is None or _is_explained(history, int(terms.steps[found])):
        return ()
    onset, gain = int(terms.steps[found]), float(np.max(terms.gain[found : found + 2 * WINDOW]))
    reason = f"each batch ends with a surrogate {gain:.2g} better than it began, which one or two updates do not bring"
    chosen = supported("batch_reused_too_often", reason)
    return (
        Finding(
            NAME, "loss_gain", chosen.cause, Severity.WARN, 0.6,
            f"The loss is below 0 at nearly every point since step {onset}, by {gain:.2g} at most: {reason}.",
            onset, None,
            (Observation("policy/loss", onset, float(terms.loss[found]), "the surrogate's gain within the batch"),),
            causes_of(scene_of(history, onset), "loss_gain", chosen),
        ),
    )  # fmt: skip


def _onset(terms: LossTerms) -> int | None:
    """Index at which a large gain began, or ``None``."""
    size = np.abs(terms.loss)
    usual = np.full(len(size), np.inf)
    for i in range(2 * WINDOW, len(size)):
        usual[i] = np.median(size[max(0, i - 4 * WINDOW) : i - WINDOW + 1])
    large = terms.gain >= LARGE
    grown = (terms.gain >= NEW) & (terms.gain >= TIMES * usual)
    start = first_run(large | grown, HOLD)
    if start is None:
        return None
    first = max(0, start - WINDOW + 1)
    loud = np.flatnonzero(terms.loss[first : start + 1] <= -0.5 * terms.gain[start])
    return first + int(loud[0]) if len(loud) else start


def _is_explained(history: History, onset: int) -> bool:
    """A bonus in the loss drives the entropy up, longer attempts are the better ones, or the rate was raised.

    Where tokens are averaged over the batch, attempts that are both longer and better weigh more: the mean is not 0.
    """
    for name, rose in (("policy/entropy", ENTROPY_ROSE), ("rollout/length_mean", LENGTH_ROSE)):
        course = first_of(history, name)
        old, new = course.between(-1, onset).values[-WINDOW:], course.between(onset, 2**62).values
        if len(old) and len(new) >= 2 * HOLD:
            level, late = float(np.median(old)), new[HOLD:]
            if float(np.median(late)) > 0.5 * (1.0 + rose) * level and float(np.max(late)) > rose * level:
                return True
    rate = history.course("policy/learning_rate").finite
    before, after = rate.between(-1, onset - 1).values, rate.between(onset, 2**62).values[:WINDOW]
    return bool(len(before) and len(after) and float(after.max()) > RATE_JUMP * max(float(before.max()), 1e-30))


DETECTOR = Detector(
    name=NAME,
    symptom="loss_gain",
    title="The update gains too much on its own batch",
    pattern="The loss below 0 at 11 of 12 points, by a median of 0.05, or of 0.008 and four times the usual size of "
    "the loss before, for six points. With one update per batch it is 0 on average; every further update on the same "
    "batch lowers it. Silent where entropy rises with it (a bonus in the loss), length does (longer attempts are the "
    "better ones), or the learning rate was raised.",
    needs=(("policy/loss",),),
    judge=judge,
    sharpened_by=("policy/entropy", "policy/learning_rate", "policy/updates", "policy/anchor_kl"),
    yields_to=("learning_rate", "mismatch", "nonfinite"),
)

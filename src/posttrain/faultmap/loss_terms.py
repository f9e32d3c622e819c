"""What a logged loss is made of: the anchor's term, and what the update gained on the surrogate within its batch.

With one update per batch and a group baseline the surrogate's value is 0 on average, so that what is left of the mean
loss is the anchor's term: weight times divergence. Every further update on the same batch lowers the surrogate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import History, Steps, Values
from posttrain.faultmap.patterns import noise, rolling_mean, rolling_median
from posttrain.faultmap.patterns_reward import compact

WINDOW = 12
SIGMAS = 5.0


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Means over the last 12 points at each step ([n]); NaN before the first 12.

    ``weight`` is the anchor's, implied by loss over divergence where the loss is clearly above 0, else 0; ``gain`` is
    what the surrogate gained: minus the median loss where all but one of the 12 are below 0, else 0.
    """

    steps: Steps
    loss: Values
    weight: Values
    gain: Values


def loss_terms(history: History) -> LossTerms | None:
    """Of a log with a loss of at least twice `WINDOW` finite points; ``None`` for others."""
    loss = compact(history.course("policy/loss"))
    if len(loss) < 2 * WINDOW:
        return None
    mean = rolling_mean(loss.values, WINDOW)
    mean[: WINDOW - 1] = np.nan
    spread = rolling_mean(np.abs(np.diff(loss.values, prepend=loss.values[:1])), WINDOW) * np.sqrt(np.pi) / 2.0
    error = np.fmax(spread, 0.3 * noise(loss.values)) / np.sqrt(WINDOW)
    kl = compact(history.course("policy/anchor_kl"))
    distance = rolling_mean(kl.on(loss.steps), WINDOW) if len(kl) else np.full(len(loss), np.nan)
    has_anchor = (mean > SIGMAS * error) & (distance > 1e-6)
    weight = np.where(has_anchor, mean / np.where(distance > 1e-6, distance, 1.0), 0.0)
    negative = WINDOW * rolling_mean((loss.values < 0).astype(np.float64), WINDOW) >= WINDOW - 1.5
    middle = rolling_median(loss.values, WINDOW)
    return LossTerms(loss.steps, loss.values, weight, np.where(negative & np.isfinite(mean), -middle, 0.0))


def implied_anchor_weight(history: History) -> float | None:
    """The weight of the anchor: from the settings, else as the whole loss implies it; ``None`` where nothing tells."""
    if history.facts.anchor_weight is not None:
        return history.facts.anchor_weight
    loss, kl = compact(history.course("policy/loss")), compact(history.course("policy/anchor_kl"))
    if len(loss) < 2 * WINDOW or len(kl) < 2 * WINDOW:
        return None
    distance = float(np.mean(kl.values))
    error = noise(loss.values) / np.sqrt(len(loss))
    mean = float(np.mean(loss.values))
    return mean / distance if mean > SIGMAS * error and distance > 1e-6 else None

"""When a reward that was learnt is shaken, and when it is lost: episodes of a course, causal point by point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, Mask, Values
from posttrain.faultmap.patterns import rolling_mean, rolling_median
from posttrain.faultmap.patterns_events import noise_so_far

LOW = 0.7
"""A point is low below this share of the learnt level (both counted from the bottom of the scale)."""
GONE = 0.15
"""Below this share nothing of what was learnt is left."""
HALF = 0.5
BACK = 0.9
SIGMAS = 4.0
LONG = 8
SLICES = 12
"""The longest mean is at most this part of the course."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Where a reward stood against its learnt level. Arrays are [n], one value per point of ``reward``.

    ``smooth`` (means of ``window`` points) and ``learnt`` (the best level held before each point: a running median
    over five windows) count from ``bottom``; ``low`` marks the points clearly below it; ``shaken`` where two of the
    last four windows are low; ``gone`` where two windows in a row have lost nearly all, or eight more than half.
    """

    reward: Course
    bottom: float
    window: int
    smooth: Values
    learnt: Values
    low: Mask
    shaken: Mask
    gone: Mask

    def onset_of_low(self, index: int) -> int:
        """Where the row of low points that holds ``index`` began."""
        before = np.flatnonzero(~self.low[: index + 1])
        return int(before[-1]) + 1 if len(before) else 0


def reward_losses(reward: Course, bottom: float, top: float) -> list[Loss]:
    """Measure a course of mean rewards against its own past, on means of 1, 2, 4, ... points.

    ``bottom`` and ``top`` are the range of the reward as known early on; it widens where means lie outside. Single
    points show a sudden loss at once, long means a smaller one under noise. Empty for fewer than 6 points.
    """
    n = len(reward)
    above = reward.values - bottom
    span = np.maximum.accumulate(np.maximum(above, max(top - bottom, 1e-12))) if n else above
    widest = _widest_noise(above / span) if n >= 2 else above
    windows = [2**k for k in range(6) if 2**k <= max(1, n // SLICES)]
    return [_at(reward, bottom, above, span, widest, w) for w in windows] if n >= 6 else []


def _at(reward: Course, bottom: float, above: Values, span: Values, widest: Values, window: int) -> Loss:
    smooth = rolling_mean(above, window)
    held = rolling_median(smooth, 5 * window)
    held[: 3 * window] = 0.0
    learnt = np.concatenate([[0.0], np.maximum.accumulate(held)[:-1]])
    # Noise of the points before it only, so that the fall does not hide in its own.
    before = np.concatenate([widest[:1], widest[:-1]])
    sigma = before * _coin(learnt / span) * span / np.sqrt(window)
    low = (smooth < LOW * learnt) & (learnt - smooth > SIGMAS * sigma)
    shaken = _count(low, 4 * window) >= 2 * window
    nearly_all = _count(low & (smooth < GONE * learnt), 2 * window) >= 2 * window
    half = _count(low & (smooth < HALF * learnt), LONG * window) >= LONG * window
    return Loss(reward, bottom, window, smooth, learnt, low, shaken, nearly_all | half)


def _widest_noise(shares: Values) -> Values:
    """Noise so far of a point in the middle of the range, from that of all points so far ([n]).

    A mean of bounded rewards is noisy like a share of successes: most in the middle, little at the ends. Without
    that a run that begins near 0 would take the noise of its middle for a loss.
    """
    coin = _coin(shares)
    known = noise_so_far(shares) / (np.cumsum(coin) / np.arange(1, len(coin) + 1))
    return np.concatenate([known[1:2], known[1:]])


def _coin(shares: Values) -> Values:
    """Spread of a coin at these places in the range, relative to that in the middle (at least 0.2)."""
    p = np.clip(shares, 0.01, 0.99)
    return 2.0 * np.sqrt(p * (1.0 - p))


def calm_after(loss: Loss, start: int) -> int | None:
    """The point at which an episode that began at ``start`` was over, or ``None`` while it goes on.

    It is over when the reward was back at nine tenths of the learnt level for twice as long as the trouble lasted,
    and for at least six windows.
    """
    low = np.flatnonzero(loss.low)
    back = loss.smooth >= BACK * loss.learnt
    run = np.zeros(len(back), np.int64)
    # Length of the row of points "back" that ends at each point.
    counts = np.arange(1, len(back) + 1)
    run = counts - np.maximum.accumulate(np.where(back, 0, counts))
    last_low = np.maximum.accumulate(np.where(loss.low, np.arange(len(back)), -1))
    needed = np.maximum(6 * loss.window, 2 * (last_low - start + 1))
    over = np.flatnonzero((run >= needed) & (np.arange(len(back)) > start) & (last_low >= start))
    return int(over[0]) if len(over) and len(low) else None


def _count(mask: Mask, width: int) -> Values:
    sums = np.concatenate([[0], np.cumsum(mask)])
    start = np.maximum(np.arange(len(mask)) + 1 - width, 0)
    return (sums[1:] - sums[start]).astype(np.float64)

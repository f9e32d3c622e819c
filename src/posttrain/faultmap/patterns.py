"""Robust measures of courses, shared by detectors: smoothing, onsets, levels, noise. All are O(n) or O(n log n)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, Mask, Values


def rolling_median(values: Values, window: int) -> Values:
    """Median of the last ``window`` values at each point, fewer at the start ([n] -> [n]). NaN is left out."""
    if window < 1:
        raise ValueError(f"a window needs at least 1 point, got {window}")
    if len(values) == 0 or window == 1:
        return values.astype(np.float64, copy=True)
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)
    seen = np.isfinite(windows)
    filled = np.where(seen, windows, np.inf)
    filled.sort(axis=1)
    counts = seen.sum(axis=1)
    rows = np.arange(len(values))
    low, high = filled[rows, np.maximum(counts - 1, 0) // 2], filled[rows, np.minimum(counts // 2, window - 1)]
    return np.where(counts > 0, 0.5 * (np.where(counts > 0, low, 0.0) + np.where(counts > 0, high, 0.0)), np.nan)


def rolling_mean(values: Values, window: int) -> Values:
    """Mean of the last ``window`` values at each point, fewer at the start ([n] -> [n]). NaN is left out."""
    if window < 1:
        raise ValueError(f"a window needs at least 1 point, got {window}")
    seen = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(seen, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(seen)])
    start = np.maximum(np.arange(len(values)) + 1 - window, 0)
    total, number = sums[1:] - sums[start], counts[1:] - counts[start]
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def first_run(mask: Mask, length: int) -> int | None:
    """Index at which the first run of ``length`` true values in a row begins, or ``None``."""
    if length < 1:
        raise ValueError(f"a run needs at least 1 point, got {length}")
    if len(mask) < length:
        return None
    sums = np.concatenate([[0], np.cumsum(mask)])
    full = np.flatnonzero(sums[length:] - sums[:-length] == length)
    return int(full[0]) if len(full) else None


def last_run(mask: Mask) -> int | None:
    """Index at which the run of true values that reaches the end begins, or ``None`` if the last is false."""
    if len(mask) == 0 or not mask[-1]:
        return None
    false = np.flatnonzero(~mask)
    return int(false[-1]) + 1 if len(false) else 0


def noise(values: Values) -> float:
    """Spread of point-to-point noise: 1.4826 x median |difference| / sqrt(2), robust against trends and jumps."""
    steps = np.abs(np.diff(values[np.isfinite(values)]))
    return float(1.4826 * np.median(steps) / np.sqrt(2.0)) if len(steps) else 0.0


def level(course: Course, first: float, last: float) -> float:
    """Median of the finite values between two fractions of the course's points (0 to 1); NaN where there is none."""
    n = len(course)
    part = course.values[int(np.floor(first * n)) : max(int(np.ceil(last * n)), int(np.floor(first * n)) + 1)]
    part = part[np.isfinite(part)]
    return float(np.median(part)) if len(part) else float("nan")


@dataclass(frozen=True, slots=True)
class Shift:
    """The best single change of level: at ``index`` the mean goes from ``before`` to ``after``.

    ``strength`` is the change over the noise of a mean difference; above about 5 it is no chance.
    """

    index: int
    before: float
    after: float
    strength: float


def best_shift(values: Values, margin: int = 3) -> Shift | None:
    """The single change of level that explains most variance, at least ``margin`` points from each end.

    ``None`` for fewer than ``2 * margin`` finite values. The index refers to ``values``.
    """
    where = np.flatnonzero(np.isfinite(values))
    x = values[where]
    n = len(x)
    if n < 2 * margin:
        return None
    sums = np.cumsum(x)
    k = np.arange(margin, n - margin + 1)
    before, after = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (n - k)
    gain = (after - before) ** 2 * k * (n - k) / n
    best = int(np.argmax(gain))
    split = int(k[best])
    spread = max(noise(x), 1e-12)
    scale = spread * np.sqrt(1.0 / split + 1.0 / (n - split))
    difference = float(after[best] - before[best])
    return Shift(int(where[split]), float(before[best]), float(after[best]), abs(difference) / float(scale))


def slope(course: Course) -> float:
    """Theil-Sen slope per step of the finite values, on at most 200 evenly chosen points; 0 for fewer than two."""
    c = course.finite
    if len(c) < 2:
        return 0.0
    keep = np.unique(np.linspace(0, len(c) - 1, min(len(c), 200)).astype(np.int64))
    steps, values = c.steps[keep].astype(np.float64), c.values[keep]
    i, j = np.triu_indices(len(keep), 1)
    return float(np.median((values[j] - values[i]) / (steps[j] - steps[i])))

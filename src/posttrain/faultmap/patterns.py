"""Robust measures of courses, shared by detectors: smoothing, runs, noise. All are O(n) or O(n log n)."""

from __future__ import annotations

import numpy as np

from posttrain.faultmap.history import Mask, Values


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

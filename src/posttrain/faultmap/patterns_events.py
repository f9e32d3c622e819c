"""When a pattern began, held and ended. Everything is causal: a value at a point uses no later point.

Detectors judge a run at every step of its life; with causal measures a finding that was right on a prefix stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, History, Mask, Steps, Values
from posttrain.faultmap.patterns import first_run, rolling_median
from posttrain.faultmap.patterns_reward import compact

_MEAN_DIFFERENCE_TO_SIGMA = float(np.sqrt(np.pi) / 2.0)


def first_of(history: History, *names: str) -> Course:
    """The compact course of the first of ``names`` that the log has; an empty one if it has none."""
    found = next((name for name in names if history.has(name)), names[0])
    return compact(history.course(found))


def smooth_on(history: History, name: str, steps: Steps, window: int = 5) -> Values:
    """Rolling median of a signal, read off at ``steps``; NaN before its first point or where it is not logged."""
    c = compact(history.course(name))
    return Course(name, c.steps, rolling_median(c.values, window)).on(steps)


def start_level(values: Values, points: int) -> float:
    """Median of the first ``points`` values; NaN while there are fewer."""
    return float(np.median(values[:points])) if len(values) >= points else float("nan")


def noise_so_far(values: Values) -> Values:
    """Point-to-point standard deviation known at each point, from the mean |difference| of all points so far ([n])."""
    if len(values) == 0:
        return values.copy()
    means = np.cumsum(np.abs(np.diff(values))) / np.arange(1, len(values))
    return np.concatenate([[np.nan], means * _MEAN_DIFFERENCE_TO_SIGMA])


def best_so_far(smoothed: Values, settle: int = 3) -> Values:
    """Highest value so far, the first ``settle - 1`` points left out because too few values are behind them ([n])."""
    usable = np.where(np.arange(len(smoothed)) >= settle - 1, smoothed, np.nan)
    return np.fmax.accumulate(usable) if len(usable) else usable


def lowest_so_far(smoothed: Values, settle: int = 3) -> Values:
    """Lowest value so far, see `best_so_far` ([n])."""
    return -best_so_far(-smoothed, settle)


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of points: ``onset`` where it began, ``alarm`` where it could be called, ``last`` its last point.

    ``last`` is ``None`` while it goes on.
    """

    onset: int
    alarm: int
    last: int | None

    def end(self, steps: Steps) -> int | None:
        """Step of the last point, ``None`` while it goes on."""
        return None if self.last is None else int(steps[self.last])

    def point(self, steps: Steps) -> int:
        """Index of the last point, the newest one while it goes on."""
        return len(steps) - 1 if self.last is None else self.last


def episode(sick: Mask, hold: int, quiet: Mask | None = None, rest: int = 5) -> Episode | None:
    """The first stretch in which ``sick`` holds ``hold`` points in a row, or ``None``.

    It began after the last ``quiet`` point (default: not ``sick``) before it, and ended where ``sick`` was false for
    the last ``rest`` points or more.
    """
    start = first_run(sick, hold)
    if start is None:
        return None
    calm = ~sick if quiet is None else quiet
    before = np.flatnonzero(calm[:start])
    onset = int(before[-1]) + 1 if len(before) else 0
    last = int(np.flatnonzero(sick)[-1])
    return Episode(onset, start + hold - 1, None if len(sick) - 1 - last < rest else last)

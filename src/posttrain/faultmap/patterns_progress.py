"""How the reward of a run stands at each step: smoothed course, its best, noise, scale, share of the possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, History, Mask, Steps, Values
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import best_so_far, noise_so_far, smooth_on, start_level
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale

WINDOW = 5
STEADY_WINDOW = 15
START_POINTS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """The reward at the steps of another course; arrays are [n], NaN where nothing is known yet.

    ``now`` is a median of 5 points, ``steady`` of 15. ``span`` is the range of single rewards as far as the log shows
    it, ``top`` its upper end; ``attained`` the share of the possible: successes where logged, else the place of the
    mean in that range.
    """

    name: str
    now: Values
    steady: Values
    best: Values
    start: float
    noise: Values
    span: float
    top: float
    attained: Values

    @property
    def known(self) -> bool:
        """True if the log has a reward at all."""
        return bool(np.isfinite(self.now).any())

    def fallen(self, share: float = 0.25, sigmas: float = 4.0) -> Mask:
        """Below its best by more than ``share`` of what was best and ``sigmas`` times the noise of a point."""
        loss = self.best - self.now
        return loss > np.fmax(share * self.span * np.fmax(self.attained_best, 0.2), sigmas * self.noise)

    @property
    def lost(self) -> Mask:
        """Fallen, and less than a third of the best is left."""
        return self.fallen() & (self.attained < self.attained_best / 3.0)

    def had_learnt(self, index: int) -> bool:
        """By this point much was won, or held for ten points: what happens now is a loss, not a failed start."""
        won = bool(self.best[index] - self.start > 0.25 * self.span)
        return won or (index >= 10 and bool(self.attained_best[index] >= 0.5))

    @property
    def attained_best(self) -> Values:
        """Highest ``attained`` so far."""
        return np.fmax.accumulate(self.attained) if len(self.attained) else self.attained

    def gained(self, since: Values | float | None = None, share: float = 0.05, sigmas: float = 2.0) -> Mask:
        """Above ``since`` (default: the start) by more than ``share`` of the span and more than noise explains."""
        gain = self.now - (self.start if since is None else since)
        return gain > np.fmax(share * self.span, sigmas * self.noise * np.sqrt(2.0 / WINDOW))

    @property
    def stands(self) -> Mask:
        """No higher than at the start, judged on 15 points: noise alone does not hide a gain."""
        return self.steady <= self.start + np.fmax(0.05 * self.span, self.noise)

    @property
    def saturated(self) -> Mask:
        """At least 80 % of what is possible."""
        return self.attained >= 0.8


def progress(history: History, steps: Steps) -> Progress:
    """How the reward stood at each of ``steps`` (int64, [n])."""
    c = compact(reward_course(history))
    smoothed = rolling_median(c.values, WINDOW)

    def on(values: Values) -> Values:
        return Course(c.name, c.steps, values).on(steps)

    scale = reward_scale(history)
    now = on(smoothed)
    success = smooth_on(history, "reward/success", steps, WINDOW)
    attained = np.where(np.isfinite(success), success, scale.share(now))
    start = start_level(c.values, START_POINTS)
    steady = on(rolling_median(c.values, STEADY_WINDOW))
    best, noise = on(best_so_far(smoothed)), on(noise_so_far(c.values))
    return Progress(c.name, now, steady, best, start, noise, scale.span, scale.top, attained)

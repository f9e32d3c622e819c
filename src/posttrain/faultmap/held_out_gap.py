"""Does a held-out score follow the training reward?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import noise
from posttrain.faultmap.patterns_reward import reward_scale

GAIN = 0.15
"""Least rise of the reward that counts, as a share of its range."""
FOLLOWS = 0.25
"""A held-out score that gains less than this share of what the reward gained does not follow."""
SIGMAS = 2.5
FALL_SIGMAS = 3.5
MANY = 8
"""So many evaluations show their own noise."""
UNKNOWN_ERROR = 0.06
"""Standard error taken for a held-out score without an interval: a share of 64 samples at one half."""


@dataclass(frozen=True, slots=True)
class HeldOutGap:
    """Means before and after the split at which the score parts from the reward.

    ``gain`` and ``follow`` are the changes of reward and score as shares of their ranges; ``falls`` says that the
    score fell, else it stayed.
    """

    score: Course
    onset: int
    paid: tuple[float, float]
    solved: tuple[float, float]
    gain: float
    follow: float
    falls: bool


def held_out_gap(history: History, reward: Course, score: Course) -> HeldOutGap | None:
    """Compare a course of evaluations with the reward paid at the same time; ``None`` where it follows."""
    if len(score) < 2:
        return None
    paid = _paid_at(reward, score)
    n = len(score)
    span = reward_scale(history).span
    width = _unit(score, span)
    gains, follows = _changes(paid / span), _changes(score.values / width)
    noisy = _error(history, score, span) / width
    own = noise(reward.values) / span * np.sqrt(2.0 / max(2, len(reward) // n))
    best, falls = _split(gains, follows, noisy, own)
    if best is None:
        return None
    gain_share, follow_share = float(gains[best - 1]), float(follows[best - 1])
    error = noisy * np.sqrt(1.0 / best + 1.0 / (n - best))
    lags = (
        follow_share <= FOLLOWS * gain_share
        and 0.5 * gain_share - follow_share > SIGMAS * error
        and _odds_lag(paid, score, best, span)
    )
    if not (falls or lags) or _is_lost(reward, paid[:best], own * span):
        return None
    onset = _onset(reward, paid[:best].mean(), paid[best:].mean())
    if falls:  # somewhere behind the last evaluation that was still good
        onset = int(reward.steps[min(np.searchsorted(reward.steps, score.steps[best - 1] + 1), len(reward) - 1)])
    solved = (float(score.values[:best].mean()), float(score.values[best:].mean()))
    before_after = (float(paid[:best].mean()), float(paid[best:].mean()))
    return HeldOutGap(score, onset, before_after, solved, gain_share, follow_share, falls)


def _is_lost(reward: Course, paid: Values, error: float) -> bool:
    """The reward now stands clearly below what was paid before the split: then it is lost like the score."""
    now = min(float(np.median(reward.values[-3:])), float(np.median(reward.values[-8:])))
    return now < float(paid.mean()) - max(4.0 * error, 0.25 * float(np.ptp(reward.values)))


def _changes(values: Values) -> Values:
    """Mean behind a split minus mean before it, for each of the n - 1 splits."""
    before = np.arange(1, len(values))
    sums = np.cumsum(values)
    return (sums[-1] - sums[:-1]) / (len(values) - before) - sums[:-1] / before


def _split(gains: Values, follows: Values, error: float, own: float) -> tuple[int | None, bool]:
    """Number of evaluations before the split to look at, and whether the score fell there.

    First the split with the greatest fall of the score, if it is clear and the reward did not fall with it; else
    that with the greatest gain of the reward, if that counts.
    """
    n = len(gains) + 1
    before = np.arange(1, n)
    errors = error * np.sqrt(1.0 / before + 1.0 / (n - before))
    fallen = np.where(gains > -own, -follows / errors, -np.inf)
    worst = int(np.argmax(fallen))
    if fallen[worst] > FALL_SIGMAS and -follows[worst] > 0.05:
        return worst + 1, True
    most = int(np.argmax(gains))
    return (most + 1, False) if gains[most] >= max(GAIN, 3.0 * own) else (None, False)


def _paid_at(reward: Course, score: Course) -> Values:
    """Mean reward of the steps up to each evaluation since the one before it (for the first: of the first points)."""
    paid: list[float] = []
    previous = -1
    for index, step in enumerate(score.steps):
        part = reward.between(previous + 1, int(step)).values
        near = part[-max(3, len(part) // 2) :] if index else part[-3:]
        if not len(near):
            near = reward.values[:3] if index == 0 else reward.between(-1, int(step)).values[-3:]
        paid.append(float(np.mean(near)) if len(near) else float(reward.values[0]))
        previous = int(step)
    return np.array(paid)


def _error(history: History, score: Course, span: float) -> float:
    """Standard error of one evaluation: from its interval, else the larger of its own noise and a default."""
    low, high = history.course(f"{score.name}_low").finite, history.course(f"{score.name}_high").finite
    if len(low) and len(high):
        width = high.on(score.steps) - low.on(score.steps)
        width = width[np.isfinite(width)]
        if len(width):
            return max(float(np.median(width)) / 3.92, 0.005)
    default = UNKNOWN_ERROR * _unit(score, span)
    if len(score) >= MANY:
        return max(noise(score.values), 0.5 * default)
    return max(noise(score.values), default) if len(score) >= 5 else default


def _unit(score: Course, span: float) -> float:
    """Width of the score's scale: that of the reward for a mean reward, else 1."""
    return span if score.name.endswith("reward_mean") else 1.0


def _odds_lag(paid: Values, score: Course, best: int, span: float) -> bool:
    """Hard tasks gain little in share although as much in odds: between shares, the odds must lag too."""
    values = score.values
    if min(paid.min(), values.min()) < 0 or max(paid.max(), values.max()) > 1 or span > 1.0:
        return True

    def odds(part: Values) -> float:
        p = float(np.clip(part.mean(), 0.01, 0.99))
        return float(np.log(p / (1.0 - p)))

    gain, follow = odds(paid[best:]) - odds(paid[:best]), odds(values[best:]) - odds(values[:best])
    return follow <= 0.35 * gain


def _onset(reward: Course, before: float, after: float) -> int:
    """First point of the stretch that stays in the upper half of the rise, judged on means of three."""
    under = np.flatnonzero(reward.values < before + 0.5 * (after - before))
    under = under[under < len(reward) - 1]
    return int(reward.steps[int(under[-1]) + 1]) if len(under) else int(reward.steps[0])

"""A moment at which the reward, or the groups it differs in, went to another level at once; and what the text did then.

A policy moves its rewards over many updates. What moves them from one point to the next is a grader, a sampler or other
tasks, and the text of the first points behind the moment tells which: the policy has not had time to answer yet.

Rewards of few attempts are noisy, so levels are means of up to 20 points on both sides. What counts as sudden is that
the first points behind the moment have most of the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from posttrain.faultmap.history import Course, History, Steps, Values
from posttrain.faultmap.patterns import noise
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, signal_share

WIDE, NEAR, FEWEST = 20, 4, 6
"""Points of a level; points right beside the moment; fewest points before it."""
SIGMAS = 5.0
LEAST_REWARD, LEAST_SILENT = 0.1, 0.2
"""Smallest change that counts: share of the reward's range, share of groups."""
SUDDEN = 0.6
CLEAR = 3.5
"""Sigmas at the place itself, once a change was found beyond doubt near it."""
_TEXT = (
    ("policy/entropy", 0.1, 0.02),
    ("policy/sampled_entropy", 0.1, 0.02),
    ("rollout/length_mean", 0.08, 0.5),
    ("rollout/length_max", 0.15, 1.0),
    ("rollout/truncated_share", 0.5, 0.1),
)
"""Signals of the sampled text, the relative change that counts, and the absolute one below which nothing does."""


class Text(StrEnum):
    """What the sampled text did at the moment."""

    KEPT = "kept"
    CHANGED = "changed"
    DRIFTS = "drifts"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Level:
    """A measure before and behind the moment. ``sigmas`` is the change over its standard error, with its sign."""

    before: float
    after: float
    sigmas: float

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Shift:
    """``reward`` in its own unit; ``silent`` is the share of groups without a signal (``None`` where not logged).

    ``span`` is the reward's range; ``departed`` names the text signals that changed.
    """

    step: int
    reward: Level
    silent: Level | None
    span: float
    text: Text
    departed: tuple[str, ...]

    @property
    def fell(self) -> bool:
        """The reward is clearly lower."""
        return self._moved < 0

    @property
    def rose(self) -> bool:
        """The reward is clearly higher."""
        return self._moved > 0

    @property
    def _moved(self) -> float:
        is_clear = abs(self.reward.sigmas) >= CLEAR and abs(self.reward.change) >= LEAST_REWARD * self.span
        return self.reward.change if is_clear else 0.0

    @property
    def is_reward_kept(self) -> bool:
        """The reward stands where it stood, as far as its noise lets one see."""
        return abs(self.reward.sigmas) < CLEAR and abs(self.reward.change) < LEAST_REWARD * self.span

    @property
    def silenced(self) -> float:
        """How much the share of groups without a signal rose (negative: fell); 0 where that is not clear."""
        if self.silent is None or abs(self.silent.sigmas) < 0.8 * CLEAR or abs(self.silent.change) < LEAST_SILENT:
            return 0.0
        return self.silent.change


def find_shift(history: History) -> Shift | None:
    """The clearest sudden change of level, or ``None``."""
    reward = compact(reward_course(history))
    n = len(reward)
    if n < FEWEST + NEAR:
        return None
    span = reward_scale(history).span
    signal = signal_share(history)
    silent = 1.0 - signal.on(reward.steps) if len(signal) and not _is_spread(signal) else np.full(n, np.nan)
    known = bool(np.isfinite(silent).all())
    places = np.arange(FEWEST, n - NEAR + 1)
    scores = _scores(reward.values, places, LEAST_REWARD * span, 0.03 * span)
    if known:
        scores = scores + _scores(silent, places, LEAST_SILENT, 0.04)
    if not scores.max() > 0:
        return None
    at = _sharpest(history, reward, silent if known else None, int(places[np.argmax(scores)]))
    text, departed = _text(history, reward, at)
    return Shift(
        int(reward.steps[at]),
        _level(reward.values, at, 0.03 * span),
        _level(silent, at, 0.04) if known else None,
        span,
        text,
        departed,
    )


def _sharpest(history: History, reward: Course, silent: Values | None, at: int) -> int:
    """The place near ``at`` that parts reward, silent groups and text best: the most of their variance explained."""
    first, last = max(0, at - WIDE), min(len(reward), at + WIDE)
    values = [reward.values] if silent is None else [reward.values, silent]
    texts = (history.course(name).finite.on(reward.steps) for name, _, _ in _TEXT[:3])
    values += [v for v in texts if bool(np.isfinite(v).all())]
    places = np.arange(max(first + NEAR, FEWEST, at - WIDE // 2), min(last - NEAR, at + WIDE // 2) + 1)
    explained = np.zeros(len(places))
    for v in values:
        part = v[first:last] - v[first:last].mean()
        whole = float(np.sum(part**2))
        if whole > 0:
            sums, left = np.cumsum(part), places - first
            # Sums before and behind a place are each other's negative: what a split explains is their squares.
            explained += sums[left - 1] ** 2 * (1.0 / left + 1.0 / (len(part) - left)) / whole
    return int(places[np.argmax(explained)])


def _is_spread(signal: Course) -> bool:
    """Only whether there is any spread is logged, not in how many groups."""
    return signal.name in ("reward/group_std_mean", "reward/std")


def _level(values: Values, at: int, least_noise: float) -> Level:
    old, new = values[max(0, at - WIDE) : at], values[at : at + WIDE]
    before, after = float(old.mean()), float(new.mean())
    error = max(noise(old), noise(new), least_noise) * np.sqrt(1.0 / len(old) + 1.0 / len(new))
    return Level(before, after, float((after - before) / error))


def _scores(values: Values, places: Steps, least: float, least_noise: float) -> Values:
    """Sigmas of the change of level at each place, 0 where it is small, unclear or not sudden."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    n = len(values)

    def mean(first: Steps, last: Steps) -> Values:
        return (sums[last] - sums[first]) / (last - first)

    start, end = np.maximum(places - WIDE, 0), np.minimum(places + WIDE, n)
    before, after = mean(start, places), mean(places, end)
    close = mean(places, np.minimum(places + NEAR, n)) - mean(np.maximum(places - NEAR, 0), places)
    middle = (start + places) // 2
    wander = np.abs(mean(middle, places) - mean(start, middle))
    change = after - before
    spread = np.array([max(noise(values[a:p]), noise(values[p:e]), least_noise)
                       for a, p, e in zip(start, places, end, strict=True)])  # fmt: skip
    sigmas = np.abs(change) / (spread * np.sqrt(1.0 / (places - start) + 1.0 / (end - places)))
    is_sudden = (close * np.sign(change) >= SUDDEN * np.abs(change)) & (wander <= 0.5 * np.abs(change))
    return np.where((np.abs(change) >= least) & (sigmas >= SIGMAS) & is_sudden, sigmas, 0.0)


def _text(history: History, reward: Course, at: int) -> tuple[Text, tuple[str, ...]]:
    first, step = int(reward.steps[max(0, at - 2 * NEAR)]), int(reward.steps[at])
    close = int(reward.steps[min(at + NEAR - 1, len(reward) - 1)])
    later = int(reward.steps[min(at + WIDE - 1, len(reward) - 1)])
    changed: list[str] = []
    is_known, drifts = False, False
    for name, relative, least in _TEXT:
        course = history.course(name).finite
        old, new = course.between(first, step - 1).values, course.between(step, close).values
        if len(old) < 2 or not len(new):
            continue
        is_known = True
        before = float(old.mean())
        wide = noise(course.between(int(reward.steps[max(0, at - WIDE)]), step - 1).values)
        error = max(wide, 0.02 * abs(before)) * np.sqrt(1.0 / len(old) + 1.0 / len(new))
        now = float(new.mean()) - before
        if abs(now) >= max(SIGMAS * error, relative * abs(before), least):
            rest = course.between(close + 1, later).values
            # Other tasks are there in full at once; a policy that moves goes on moving.
            goes_on = len(rest) >= NEAR and abs(float(rest.mean()) - before) > 1.8 * abs(now)
            is_first = abs(float(new[0]) - before) >= 0.4 * abs(now)
            drifts |= goes_on or not is_first
            changed.append(name)
    if not is_known:
        return Text.UNKNOWN, ()
    if drifts:
        return Text.DRIFTS, tuple(changed)
    return (Text.CHANGED if changed else Text.KEPT), tuple(changed)

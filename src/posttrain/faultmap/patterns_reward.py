"""What a log says about rewards, whatever their scale: level, range, signal within groups, held-out courses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, History, Mask, Steps, Values
from posttrain.faultmap.patterns import last_run

POINTS = 1024
"""Long courses are judged on at most about this many means of equal slices."""


def compact(course: Course) -> Course:
    """The finite points; more than twice `POINTS` become means of slices.

    A slice holds a power of two of points and is dated by its last one, so that a growing course keeps its slices.
    """
    c = course.finite
    width = 1
    while len(c) // width > 2 * POINTS:
        width *= 2
    if width == 1:
        return c
    whole = len(c) - len(c) % width
    return Course(c.name, c.steps[width - 1 : whole : width], c.values[:whole].reshape(-1, width).mean(axis=1))


def newest_step(history: History) -> int:
    """The last step of which anything was logged; -1 for an empty log. Cheaper than ``history.steps``."""
    return max((int(c.steps[-1]) for c in history.courses.values() if len(c)), default=-1)


def reward_course(history: History) -> Course:
    """Mean reward, or the share of successes where only that is logged; finite points only."""
    name = "reward/mean" if history.has("reward/mean") else "reward/success"
    return history.course(name).finite


@dataclass(frozen=True, slots=True)
class Scale:
    """Range of the reward, as far as the log shows it. ``top`` is at least every reward mean that was seen."""

    bottom: float
    top: float

    @property
    def span(self) -> float:
        """Width of the range; a tiny positive number where it has none."""
        return max(self.top - self.bottom, 1e-12)

    def share(self, values: Values) -> Values:
        """Place of rewards in the range: 0 at its bottom, 1 at its top."""
        return (values - self.bottom) / self.span


def reward_scale(history: History) -> Scale:
    """The range of single rewards.

    Logged minima and maxima count if there are any. Else the bottom is 0 (or the lowest mean, if negative), and
    the top follows from the spread: no reward with mean m, variance v and bottom a can have a maximum under
    m + v / (m - a) (inequality of Bhatia and Davis).
    """
    reward = reward_course(history)
    if not len(reward):
        return Scale(0.0, 1.0)
    lowest, highest = history.course("reward/min").finite.values, history.course("reward/max").finite.values
    bottom = float(lowest.min()) if len(lowest) else min(0.0, float(reward.values.min()))
    if len(highest):
        return Scale(bottom, max(float(highest.max()), float(reward.values.max())))
    spread_name = "reward/std" if history.has("reward/std") else "reward/group_std_mean"
    spread = history.course(spread_name).on(reward.steps)
    above = reward.values - bottom
    usable = np.isfinite(spread) & (above > 0)
    bound = reward.values[usable] + spread[usable] ** 2 / above[usable]
    # A mean of several steps has a larger variance over its mean than its parts: the median is not fooled.
    top = float(np.median(bound)) if len(bound) else bottom
    return Scale(bottom, max(top, float(reward.values.max())))


def signal_share(history: History) -> Course:
    """Share of groups whose rewards differ within the group; empty where the log does not show it.

    Where only a spread is logged, it is 0 or 1: whether there is any.
    """
    zero = history.course("reward/zero_variance_groups").finite
    if len(zero):
        return Course("reward/zero_variance_groups", zero.steps, 1.0 - zero.values)
    solved, failed = history.course("reward/all_success_groups").finite, history.course("reward/all_fail_groups").finite
    if len(solved) and len(failed):
        share = np.clip(1.0 - solved.values - failed.on(solved.steps), 0.0, 1.0)
        return Course(solved.name, solved.steps, share).finite
    for name in ("reward/group_std_mean", "reward/std"):
        spread = history.course(name).finite
        if len(spread):
            return Course(name, spread.steps, (spread.values > 1e-9).astype(np.float64))
    return Course("reward/zero_variance_groups", zero.steps, zero.values)


def part_names(history: History) -> list[str]:
    """Names of the parts of the reward, sorted."""
    found = {c.name.removeprefix("reward/part/").rpartition("/")[0] for c in history.matching("reward/part/")}
    return sorted(found)


def held_out(history: History) -> list[Course]:
    """One course per evaluated environment: its mean reward, else pass@1, else greedy success, else a pass@k."""
    courses: dict[str, Course] = {}
    ranks: dict[str, int] = {}
    for course in history.matching("evaluation/"):
        environment, _, quantity = course.name.removeprefix("evaluation/").rpartition("/")
        rank = _rank(quantity)
        if rank is not None and len(course.finite) and rank < ranks.get(environment, 99):
            ranks[environment], courses[environment] = rank, course.finite
    return list(courses.values())


def _rank(quantity: str) -> int | None:
    order = ("reward_mean", "pass@1", "greedy_success")
    if quantity in order:
        return order.index(quantity)
    is_pass = quantity.startswith("pass@") and not quantity.endswith(("_low", "_high"))
    return len(order) if is_pass else None


@dataclass(frozen=True, slots=True)
class ConstantRun:
    """Every reward of every group was ``value``, from ``index`` of ``reward`` to the end of the log."""

    reward: Course
    index: int
    value: float

    @property
    def points(self) -> int:
        """How many points it has lasted."""
        return len(self.reward) - self.index

    @property
    def step(self) -> int:
        """Its first step."""
        return int(self.reward.steps[self.index])


def constant_run(history: History) -> ConstantRun | None:
    """The run of constant rewards that reaches the end of the log, or ``None``."""
    reward, signal = reward_course(history), signal_share(history)
    if not len(reward) or not len(signal):
        return None
    value = float(reward.values[-1])
    same = np.abs(reward.values - value) <= 1e-6 * max(1.0, abs(value))
    silent = signal.on(reward.steps) <= 1e-9
    spread = history.course("reward/std").finite
    if len(spread):
        narrow = ~(spread.on(reward.steps) > 1e-6 * max(1.0, abs(value)))
        # Where all attempts of a step are alike, so are those of its groups, be they dropped before they are counted.
        silent = narrow & (silent | np.isin(reward.steps, spread.steps))
    start = last_run(same & silent)
    return None if start is None else ConstantRun(reward, start, value)


def run_to_end(mask: Mask, steps: Steps) -> tuple[int, int] | None:
    """First step and number of points of the run of true values that reaches the end, or ``None``."""
    start = last_run(mask)
    return None if start is None else (int(steps[start]), len(mask) - start)

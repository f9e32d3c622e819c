"""Moments at which grading changed: measures of the reward jump within one point and stay, while the text is as before.

A policy moves its rewards over many updates; a grader, a mix of tasks or a definition of the reward changes them at
once, and at that moment the policy has not yet had time to answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.behaviour import Behaviour, compare
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import noise
from posttrain.faultmap.patterns_reward import compact, reward_scale

BEFORE = 8
AFTER = 3
LEAST_BEFORE = 2
SIGMAS = 6.0
LEAST_NOISE = 0.02
SINGLE = 0.6
"""Share of the change that must come within one point."""
NOISE_POINTS = 30
_SHARES = ("reward/success", "reward/all_fail_groups")
_AMOUNTS = ("reward/mean", "reward/std")
_CONSEQUENCES = ("policy/grad_norm", "policy/approx_kl", "policy/clip_fraction_high", "policy/clip_fraction_low")
"""What an update does with other rewards, whatever changed them."""


@dataclass(frozen=True, slots=True)
class Jump:
    """At ``step`` a course went from ``before`` to ``after`` within one point and stayed there for three."""

    signal: str
    step: int
    before: float
    after: float


def jumps(course: Course, least: float, scale: float) -> list[Jump]:
    """Changes of at least ``least`` that stand 6 times over the noise of the points around them, the first first.

    Levels are medians of up to 8 points before (at least 2) and of 3 after. ``scale`` is the width of the
    signal's range: beneath 2 % of it nothing counts as less noisy.
    """
    c = compact(course)
    values, n = c.values, len(c)
    if n < LEAST_BEFORE + AFTER:
        return []
    steps = np.abs(np.diff(values))
    found: list[Jump] = []
    for at in np.flatnonzero(steps >= SINGLE * least) + 1:
        near = float(np.mean(values[at - LEAST_BEFORE : at])) if at >= LEAST_BEFORE else np.nan
        if at > n - AFTER or not abs(float(np.mean(values[at : at + AFTER])) - near) >= 0.5 * least:
            continue
        before = float(np.median(values[max(0, at - BEFORE) : at]))
        after = float(np.median(values[at : at + AFTER]))
        spread = max(noise(values[max(0, at - NOISE_POINTS) : at + AFTER]), LEAST_NOISE * scale)
        error = spread * np.sqrt(1.0 / min(at, BEFORE) + 1.0 / AFTER)
        change = abs(after - before)
        one = (values[at] - values[at - 1]) * np.sign(after - before)
        stays = bool(np.all((values[at : at + AFTER] - 0.5 * (before + after)) * np.sign(after - before) > 0))
        if change >= max(least, SIGMAS * error) and one >= SINGLE * change and stays:
            found.append(Jump(c.name, int(c.steps[at]), before, after))
    return found


def grading_changes(history: History) -> list[Jump]:
    """Jumps of reward, its spread, successes or failed groups that the sampled text does not explain, by step."""
    span = reward_scale(history).span
    found = [j for name in _SHARES for j in jumps(history.course(name), 0.25, 1.0)]
    for name in _AMOUNTS:
        found += jumps(history.course(name), 0.2 * span, span)
    kept: dict[int, Jump] = {}
    for jump in found:
        kept.setdefault(jump.step, jump)
    return [kept[step] for step in sorted(kept) if is_text_kept(history, step)]


def is_text_kept(history: History, step: int) -> bool:
    """True if text and log-probs right behind a step look as right before it. False where neither is logged."""
    behaviour = around(history, step)
    other = [d for d in behaviour.departures if d.trait.signal not in _CONSEQUENCES]
    return behaviour.is_text_known and not other


def around(history: History, step: int) -> Behaviour:
    """Behaviour over the few logged points behind a step against those before it."""
    course = history.course("reward/mean" if history.has("reward/mean") else "reward/success").finite
    if not len(course):
        return Behaviour((), ())
    at = int(np.searchsorted(course.steps, step))
    first = int(course.steps[max(0, at - BEFORE)])
    last = int(course.steps[min(at + AFTER - 1, len(course) - 1)])
    return compare(history, (first, step - 1), (step, last))

"""What a gap between sampler and trainer looks like over the steps, and at its extremes."""

from __future__ import annotations

import numpy as np

from posttrain.faultmap.history import History, Steps, Values

RESET = 0.15
"""A gap that falls under this share of what it was, to its level before it opened or after one update, was reset."""
LEVEL = 1.1
"""What stays grows no more than this."""
STAYS, NOT_ABOVE = 0.2, 1.3
"""What has levelled off is still so large, and later never so large, relative to its height when it did."""
COLD_TAIL = 0.4
"""Of a two-sided d the rarer side's extreme is about as large as the other's; of a colder sampler's it is far less."""
COLD_SHARE = 0.8
COLD_POINTS = 5


def resets(after: Values, before: float, exact: float) -> int:
    """How often a gap that had grown fell back at once to where it began (``after``: its values from its onset on).

    An engine that takes new weights only now and then starts anew each time; old data or other numbers never do.
    """
    of_one_update = 1.5 * float(after[0])
    floor = max(2.0 * before + exact if np.isfinite(before) else exact, of_one_update)
    earlier = np.fmin(after[:-1], np.concatenate([after[:1], after[:-2]]))
    return int(np.sum((after[1:] <= floor) & (after[1:] <= RESET * earlier)))


def levels_off(after: Values) -> bool:
    """The gap rose with each of its first m updates (m of 3 or more), to about m times the first, and then no further.

    Data of a fixed age is as old after many updates as after m; an engine that keeps its weights falls behind for ever.
    """
    newest = float(np.median(after[-5:]))
    for m in range(3, len(after) - 2):
        rise, rest = after[:m], after[m : 3 * m]
        if len(rest) < max(5, m):
            return False
        top = float(rise.max())
        grew = float(np.mean(np.diff(rise) > 0)) >= 0.75 and rise[-1] >= max(2.0, m / 2) * rise[0]
        if grew and STAYS * top <= float(np.median(rest)) <= LEVEL * top and newest <= NOT_ABOVE * top:
            return True
    return False


def cold_tail(history: History, steps: Steps) -> float:
    """Share of the points at which the largest |d| is far off on one side only: no sampled token is much less likely.

    Of q = p^b / Z with b > 1, p / q = Z p^(1 - b) is at least Z, and large where p is small: tokens that are much
    likelier in the trainer, and none that are much less likely. Rounding and old weights have both kinds. NaN where
    the smallest weight and the largest |d| are not logged at 5 points.
    """
    top = history.course("logprobs/mismatch_max").finite
    names = ("logprobs/ratio_min", "logprobs/correction_min")
    least = next((history.course(n).finite for n in names if history.has(n)), None)
    if least is None or not len(top):
        return float("nan")
    shared = np.intersect1d(np.intersect1d(top.steps, least.steps), steps)
    weights, sizes = least.on(shared), top.on(shared)
    known = (weights > 0) & (sizes > 0)
    if int(known.sum()) < COLD_POINTS:
        return float("nan")
    return float(np.mean(-np.log(weights[known]) <= COLD_TAIL * sizes[known]))

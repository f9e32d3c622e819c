"""A grading that, from one moment on, follows the length of the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.grading_change import Jump, grading_changes
from posttrain.faultmap.history import History
from posttrain.faultmap.length_pay import LengthPay, length_pay
from posttrain.faultmap.patterns_reward import newest_step

FOLLOWS = 0.5
STEEPER = 0.3
OVER = 0.2
GROUPS = 4
READ = 3
"""Sample steps read behind a change: the first ones, so that later samples do not move the verdict."""


@dataclass(frozen=True, slots=True)
class PaidLength:
    """``change`` is where the grading changed; ``before`` and ``now`` the correlations of reward and length.

    ``before`` is ``None`` where no samples were kept then; ``step`` is that of the first samples that show ``now``.
    """

    change: Jump
    before: float | None
    now: float
    groups: int
    step: int


def paid_length(history: History) -> PaidLength | None:
    """The first change of grading behind which the reward follows the length within groups, and goes on doing so."""
    if history.samples is None:
        return None
    newest = newest_step(history)
    sampled = [s for s in history.samples.steps() if s <= newest]
    if not sampled:
        return None
    for change in grading_changes(history):
        found = _behind(history, sampled, change)
        if found is not None:
            last = length_pay(history, sampled[-1])
            is_over = last is not None and last.groups >= GROUPS and last.correlation < OVER
            return None if is_over else found
    return None


def _behind(history: History, sampled: list[int], change: Jump) -> PaidLength | None:
    since = [s for s in sampled if s >= change.step][:READ]
    measured = [(s, pay) for s in since if (pay := length_pay(history, s)) is not None and pay.levels > 2]
    groups = sum(pay.groups for _, pay in measured)
    if groups < GROUPS:
        return None
    now = float(np.average([p.correlation for _, p in measured], weights=[p.groups for _, p in measured]))
    earlier = [s for s in sampled if s < change.step]
    before: LengthPay | None = length_pay(history, earlier[-1]) if earlier else None
    was = before.correlation if before is not None else None
    if now < FOLLOWS or (was is not None and now - was < STEEPER):
        return None
    return PaidLength(change, was, now, groups, measured[0][0])

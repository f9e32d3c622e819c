"""Does the reward pay for length? Within groups of samples, where tasks are equal and only the attempts differ."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import History, Sample


@dataclass(frozen=True, slots=True)
class LengthPay:
    """Mean correlation of reward and length within groups, over ``groups`` groups of one step.

    ``levels`` counts different rewards: where a grade is only right or wrong, longer may simply be better.
    """

    correlation: float
    groups: int
    levels: int

    @property
    def pays(self) -> bool:
        """Length decides the reward, and by degrees."""
        return self.correlation > 0.7 and self.levels > 4 and self.groups >= 2

    @property
    def text(self) -> str:
        """As a reason."""
        return f"within groups the reward follows the length (correlation {self.correlation:.2f})"


def length_pay(history: History, step: int) -> LengthPay | None:
    """Measured on the newest samples up to a step; ``None`` where there are none with reward and length."""
    if history.samples is None:
        return None
    known = [s for s in history.samples.steps() if s <= step]
    if not known:
        return None
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in history.samples.read(known[-1]):
        if sample.reward is not None and np.isfinite(sample.reward):
            groups[sample.group_id or sample.prompt].append(sample)
    found: list[float] = []
    levels: set[float] = set()
    for members in groups.values():
        rewards = np.array([s.reward for s in members], np.float64)
        sizes = np.array([s.tokens if s.tokens is not None else len(s.completion) for s in members], np.float64)
        if len(members) >= 3 and rewards.std() > 0 and sizes.std() > 0:
            found.append(float(np.corrcoef(rewards, sizes)[0, 1]))
            levels.update(np.round(rewards, 6).tolist())
    return LengthPay(float(np.mean(found)), len(found), len(levels)) if found else None

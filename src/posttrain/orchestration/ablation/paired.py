"""Statistics of paired seeds: Student's t over the differences, effect size, Holm's correction. Pure functions.

With n seeds the differences d_1..d_n between an arm and the base give the mean m, the standard deviation s (n - 1 in
the denominator), t = m / (s / sqrt n) with n - 1 degrees of freedom, and the interval m ± q s / sqrt n, where q is the
97.5 % quantile of t. That assumes nearly normal differences between seeds; with few seeds it cannot be checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.orchestration.statistics import CONFIDENCE


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Arm minus base over the seeds that both have.

    ``low``, ``high`` (95 %) and ``p`` (two-sided) are ``None`` with fewer than two seeds, or where every seed moved by
    the same amount: nothing then tells chance apart. ``effect`` is ``mean`` over the standard deviation of the base's
    seeds; ``None`` where that is not defined or 0.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    p: float | None
    effect: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form; ``by_seed`` has the seeds as keys."""
        return {
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "effect": self.effect,
            "by_seed": {str(s): d for s, d in zip(self.seeds, self.differences, strict=True)},
        }


def paired_difference(base: dict[int, float], arm: dict[int, float]) -> PairedDifference | None:
    """Compare two sets of runs, values by seed; ``None`` if they share no seed."""
    seeds = tuple(sorted(base.keys() & arm.keys()))
    if not seeds:
        return None
    differences = tuple(arm[s] - base[s] for s in seeds)
    mean = math.fsum(differences) / len(seeds)
    low = high = p = None
    spread = standard_deviation(differences)
    if spread is not None and spread > _rounding([*base.values(), *arm.values()]):
        freedom, error = len(seeds) - 1, spread / math.sqrt(len(seeds))
        reach = t_quantile(CONFIDENCE, freedom) * error
        low, high, p = mean - reach, mean + reach, 1.0 - t_within(abs(mean) / error, freedom)
    scale = standard_deviation([base[s] for s in seeds])
    effect = mean / scale if scale is not None and scale > _rounding(list(base.values())) else None
    return PairedDifference(seeds, differences, mean, low, high, p, effect)


def standard_deviation(values: Sequence[float]) -> float | None:
    """With n - 1 in the denominator; ``None`` for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's step-down adjustment (1979): sorted, p_(i) becomes max over j <= i of (m - j + 1) p_(j), at most 1.

    A comparison without a p-value counts in m, the number of comparisons made, and stays without.
    """
    adjusted: list[float | None] = [None] * len(p_values)
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[index] = largest
    return tuple(adjusted)


def t_within(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's t with ``freedom`` >= 1 degrees of freedom, t >= 0 (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    within = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, within))


def t_quantile(within: float, freedom: int) -> float:
    """The t with P(|T| <= t) = ``within``, 0 <= ``within`` < 1, by bisection to rounding."""
    low, high = 0.0, 1.0
    while t_within(high, freedom) < within:
        high *= 2.0
    while (middle := (low + high) / 2.0) not in (low, high):
        low, high = (middle, high) if t_within(middle, freedom) < within else (low, middle)
    return high


def _rounding(values: Sequence[float]) -> float:
    """What the standard deviation of equal differences between such values can be by rounding alone."""
    return 8.0 * math.ulp(max((abs(v) for v in values), default=0.0))

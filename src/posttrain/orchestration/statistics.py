"""Estimates from repeated attempts at tasks: pass@k, majority@k, and intervals by bootstrap over tasks.

Pure functions of numbers. ``n`` attempts at a task of which ``c`` succeed; ``k`` of them are drawn without
replacement. Intervals resample *clusters* of tasks (tasks that share their content, such as ``3 + 5`` and
``5 + 3``), because attempts at one task, and tasks of one cluster, are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from posttrain.errors import InputError

Float64Array = npt.NDArray[np.float64]

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its bootstrap interval. ``tasks`` is how many tasks it rests on."""

    value: float
    low: float
    high: float
    tasks: int

    def to_json(self) -> dict[str, float | int]:
        """JSON-compatible form."""
        return {"value": self.value, "low": self.low, "high": self.high, "tasks": self.tasks}


@dataclass(frozen=True, slots=True)
class AnswerClass:
    """Attempts that gave the same answer: how many, and how many of them were successes."""

    count: int
    successes: int


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that at least one of ``k`` attempts drawn from ``attempts`` succeeds.

    Unbiased: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374). Raises InputError unless
    0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= successes <= attempts:
        raise InputError("successes", successes, f"is not between 0 and {attempts} attempts", "Count again")
    _check_k(attempts, k)
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


def majority_at_k(answers: Sequence[AnswerClass], without_answer: int, k: int) -> float:
    """Expected success of the most frequent answer among ``k`` attempts drawn without replacement. Exact.

    ``without_answer`` attempts have no answer: they are drawn but do not vote; a draw without any vote
    fails. Ties are broken at random. An answer's success is the mean over the attempts that gave it (1 or
    0 where the grader looks at the answer alone). Raises InputError unless 1 <= k <= number of attempts.
    """
    total = sum(a.count for a in answers) + without_answer
    _check_k(total, k)
    expected = 0.0
    for index, answer in enumerate(answers):
        if answer.successes == 0:
            continue
        rivals = [a.count for i, a in enumerate(answers) if i != index]
        wins = sum(
            comb(answer.count, votes) * _ways_to_lose(rivals, without_answer, votes, k - votes)
            for votes in range(1, min(answer.count, k) + 1)
        )
        expected += answer.successes / answer.count * wins / comb(total, k)
    return expected


def _ways_to_lose(rivals: Sequence[int], without_answer: int, votes: int, rest: int) -> float:
    """Ways to draw ``rest`` attempts so that no rival exceeds ``votes``, each divided by 1 + number of ties."""
    ways = np.zeros((rest + 1, rest // votes + 1))
    ways[0, 0] = 1.0
    for size in rivals:
        extended = np.zeros_like(ways)
        for drawn in range(min(size, votes, rest) + 1):
            ties = int(drawn == votes)
            extended[drawn:, ties:] += comb(size, drawn) * ways[: rest + 1 - drawn, : ways.shape[1] - ties]
        ways = extended
    by_ties = sum(comb(without_answer, silent) * ways[rest - silent] for silent in range(min(without_answer, rest) + 1))
    return float(np.sum(by_ties / np.arange(1, ways.shape[1] + 1)))


def bootstrap_mean(
    values: Sequence[float] | Float64Array, clusters: Sequence[str], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Mean of per-task values with a 95 % percentile interval from resampling clusters.

    ``values`` (tasks,) and the cluster of each. For a paired difference pass the differences. Raises
    InputError on no values, unequal lengths or a value that is not finite.
    """
    array = np.asarray(values, np.float64)
    if array.size == 0 or array.shape != (len(clusters),):
        raise InputError("values", array.shape, f"{len(clusters)} tasks have no mean of that", "Pass one value a task")
    if not np.isfinite(array).all():
        raise InputError("values", float(array[~np.isfinite(array)][0]), "is not finite", "Leave such tasks out")
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    sums, sizes = np.bincount(index, array), np.bincount(index).astype(np.float64)
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, sums.size, (resamples, sums.size))
    means = sums[draws].sum(1) / sizes[draws].sum(1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(float(array.mean()), float(low), float(high), int(array.size))


def _check_k(attempts: int, k: int) -> None:
    if not 1 <= k <= attempts:
        raise InputError(
            "evaluation.k", k, f"cannot be estimated from {attempts} attempts", f"Use 1 to {attempts}, or more samples"
        )

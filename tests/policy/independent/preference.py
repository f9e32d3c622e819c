"""Preference losses from pairs of rows, KTO, and the reward model's loss (formula sheet, section D).

`pairs` are (chosen row, rejected row). A row's log-prob is the SUM over its response tokens unless a function says
average. A pair with a fully masked side counts nowhere. Every function returns a `Loss`, mean over the pairs (KTO: over
the examples), unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log1p

import numpy as np

from .arrays import Array, Batch, Loss, need, row_tokens

Pairs = Sequence[tuple[int, int]]


def log_sigmoid(x: float) -> float:
    """log(1 / (1 + e^-x)) without overflow."""
    return -log1p(exp(-x)) if x >= 0 else x - log1p(exp(x))


def sigmoid(x: float) -> float:
    return exp(log_sigmoid(x))


def row_logp(logp: Array, batch: Batch, row: int, *, average: bool = False) -> float:
    """Sum, or average, of the row's response log-probs."""
    positions = row_tokens(batch.mask, row)
    total = float(sum(logp[row, t] for t in positions))
    return total / len(positions) if average else total


def usable(batch: Batch, pairs: Pairs) -> list[tuple[int, int]]:
    return [(c, r) for c, r in pairs if row_tokens(batch.mask, c) and row_tokens(batch.mask, r)]


def margin(moved: Array, batch: Batch, pair: tuple[int, int], *, average: bool = False) -> float:
    """Delta = (lp_c - ref_c) - (lp_r - ref_r), nats (per token with `average`)."""
    ref = need(batch.logp_ref, "logp_ref")
    chosen, rejected = pair
    return (
        row_logp(moved, batch, chosen, average=average)
        - row_logp(ref, batch, chosen, average=average)
        - row_logp(moved, batch, rejected, average=average)
        + row_logp(ref, batch, rejected, average=average)
    )


def over_pairs(batch: Batch, pairs: Pairs, rule: Callable[[Array, tuple[int, int]], float]) -> Loss:
    live = usable(batch, pairs)
    return lambda base, moved: sum(rule(moved, pair) for pair in live) / len(live) if live else 0.0


def dpo(batch: Batch, pairs: Pairs, beta: float = 0.1) -> Loss:
    """-log sigmoid(beta Delta)."""
    return over_pairs(batch, pairs, lambda lp, pair: -log_sigmoid(beta * margin(lp, batch, pair)))


def cdpo(batch: Batch, pairs: Pairs, beta: float = 0.1, noise: float = 0.1) -> Loss:
    """-(1 - e) log sigmoid(beta Delta) - e log sigmoid(-beta Delta)."""

    def rule(lp: Array, pair: tuple[int, int]) -> float:
        x = beta * margin(lp, batch, pair)
        return -(1 - noise) * log_sigmoid(x) - noise * log_sigmoid(-x)

    return over_pairs(batch, pairs, rule)


def robust_dpo(batch: Batch, pairs: Pairs, beta: float = 0.1, noise: float = 0.1) -> Loss:
    """[-(1 - e) log sigmoid(beta Delta) + e log sigmoid(-beta Delta)] / (1 - 2e)."""

    def rule(lp: Array, pair: tuple[int, int]) -> float:
        x = beta * margin(lp, batch, pair)
        return (-(1 - noise) * log_sigmoid(x) + noise * log_sigmoid(-x)) / (1 - 2 * noise)

    return over_pairs(batch, pairs, rule)


def ipo(batch: Batch, pairs: Pairs, beta: float = 0.1, *, average: bool = False) -> Loss:
    """(Delta - 1 / (2 beta))^2 with sums; `average`: with token averages (TRL)."""
    return over_pairs(batch, pairs, lambda lp, pair: (margin(lp, batch, pair, average=average) - 0.5 / beta) ** 2)


def simpo(batch: Batch, pairs: Pairs, beta: float = 2.0, gamma: float = 1.0) -> Loss:
    """-log sigmoid(beta (lp_c / |c| - lp_r / |r|) - gamma), no reference."""

    def rule(lp: Array, pair: tuple[int, int]) -> float:
        gap = row_logp(lp, batch, pair[0], average=True) - row_logp(lp, batch, pair[1], average=True)
        return -log_sigmoid(beta * gap - gamma)

    return over_pairs(batch, pairs, rule)


def kto_baseline(logp: Array, batch: Batch, mismatched: Sequence[int]) -> float:
    """z0 = max(0, mean of lp - ref over the mismatched rows of the batch); a constant for the loss."""
    ref = need(batch.logp_ref, "logp_ref")
    gaps = [row_logp(logp, batch, i) - row_logp(ref, batch, i) for i in mismatched if row_tokens(batch.mask, i)]
    return max(0.0, sum(gaps) / len(gaps)) if gaps else 0.0


def kto(
    batch: Batch,
    desirable: Sequence[int],
    undesirable: Sequence[int],
    z0: float,
    beta: float = 0.1,
    weight_desirable: float = 1.0,
    weight_undesirable: float = 1.0,
) -> Loss:
    """lamD (1 - sigmoid(beta (s - z0))) or lamU (1 - sigmoid(beta (z0 - s))), s = lp - ref; mean over the examples."""
    ref = need(batch.logp_ref, "logp_ref")

    def loss(base: Array, moved: Array) -> float:
        terms = []
        for rows, sign, weight in ((desirable, 1, weight_desirable), (undesirable, -1, weight_undesirable)):
            for i in rows:
                if row_tokens(batch.mask, i):
                    s = row_logp(moved, batch, i) - row_logp(ref, batch, i)
                    terms.append(weight * (1 - sigmoid(sign * beta * (s - z0))))
        return sum(terms) / len(terms) if terms else 0.0

    return loss


def bradley_terry(
    chosen: Array, rejected: Array, margins: Array | None = None, centre: float = 0.0
) -> tuple[float, Array, Array]:
    """(loss, d loss / d chosen, d loss / d rejected) of mean(-log sigmoid(r_c - r_r - margin)) + c mean((r_c + r_r)^2).

    Scores (P,) of P pairs; derivatives by the chain rule on the formula.
    """
    count = len(chosen)
    m = np.zeros(count) if margins is None else margins
    loss, to_chosen, to_rejected = 0.0, np.zeros(count), np.zeros(count)
    for p in range(count):
        x, both = float(chosen[p] - rejected[p] - m[p]), float(chosen[p] + rejected[p])
        loss += (-log_sigmoid(x) + centre * both**2) / count
        pull = sigmoid(-x)
        to_chosen[p] = (-pull + 2 * centre * both) / count
        to_rejected[p] = (pull + 2 * centre * both) / count
    return loss, to_chosen, to_rejected


def pair_metrics(batch: Batch, pairs: Pairs, beta: float = 0.1) -> dict[str, float]:
    """accuracy (share of Delta > 0), margin (mean beta Delta), chosen_logp and rejected_logp (mean sums, nats)."""
    live = usable(batch, pairs)
    deltas = [margin(batch.logp_new, batch, pair) for pair in live]
    return {
        "accuracy": sum(d > 0 for d in deltas) / len(live),
        "margin": beta * sum(deltas) / len(live),
        "chosen_logp": sum(row_logp(batch.logp_new, batch, c) for c, _ in live) / len(live),
        "rejected_logp": sum(row_logp(batch.logp_new, batch, r) for _, r in live) / len(live),
    }

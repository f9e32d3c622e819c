"""Per-token losses (S, T) of the policy-gradient family (formula sheet, section A).

Arguments: `base` holds the log-probs every detached factor is computed from, `moved` the ones that carry gradient,
`advantage` is (S, T). Entries outside the mask are 0 and never read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import exp, log

import numpy as np

from .arrays import Array, Mask, live_rows, row_tokens

Position = tuple[int, int]


def each(mask: Mask, rule: Callable[[int, int], float]) -> Array:
    """rule(row, position) on every policy token."""
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        for t in row_tokens(mask, i):
            out[i, t] = rule(i, t)
    return out


def reinforce(moved: Array, advantage: Array, mask: Mask) -> Array:
    """-A lp (A1)."""
    return each(mask, lambda i, t: -advantage[i, t] * moved[i, t])


def surrogate(moved: Array, anchor: Array, advantage: Array, mask: Mask) -> Array:
    """-A r with r = pi / anchor, no bound (A1)."""
    return each(mask, lambda i, t: -advantage[i, t] * exp(moved[i, t] - anchor[i, t]))


def clip_loss(
    ratio: float, a: float, low: float, high: float, dual: float | None = None, delta: float | None = None
) -> float:
    """max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)); with `dual` and A < 0 at most -dual A (A5, A20)."""
    free = ratio if delta is None else min(ratio, delta)
    loss = max(-a * free, -a * min(max(ratio, 1 - low), 1 + high))
    return min(loss, -dual * a) if dual is not None and a < 0 else loss


def ppo(
    moved: Array,
    old: Array,
    advantage: Array,
    mask: Mask,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    delta: float | None = None,
) -> Array:
    """The clipped surrogate per token; `dual` = dual-clip constant c, `delta` = two-sided bound of INTELLECT-2."""
    return each(mask, lambda i, t: clip_loss(exp(moved[i, t] - old[i, t]), advantage[i, t], low, high, dual, delta))


def capped_reinforce(
    base: Array, moved: Array, anchor: Array, advantage: Array, mask: Mask, cap: float | None, low: float = 0.0
) -> Array:
    """-sg(max(min(pi / anchor, cap), low)) A lp: CISPO (anchor old), AIPO and ScaleRL (anchor the sampler)."""

    def weight(i: int, t: int) -> float:
        rho = exp(base[i, t] - anchor[i, t])
        return max(rho if cap is None else min(rho, cap), low)

    return each(mask, lambda i, t: -weight(i, t) * advantage[i, t] * moved[i, t])


def sapo(moved: Array, old: Array, advantage: Array, mask: Mask, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Array:
    """-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A (A13)."""

    def rule(i: int, t: int) -> float:
        tau = tau_pos if advantage[i, t] > 0 else tau_neg
        return -4 / tau / (1 + exp(-tau * (exp(moved[i, t] - old[i, t]) - 1))) * advantage[i, t]

    return each(mask, rule)


def gspo_token(
    base: Array, moved: Array, old: Array, advantage: Array, mask: Mask, low: float = 3e-4, high: float = 4e-4
) -> Array:
    """s_it = sg(s_i) pi / sg(pi), s_i the row's geometric mean ratio; the clip of A10 on s_it."""
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        positions = row_tokens(mask, i)
        s = exp(sum(base[i, t] - old[i, t] for t in positions) / len(positions))
        for t in positions:
            out[i, t] = clip_loss(s * exp(moved[i, t] - base[i, t]), advantage[i, t], low, high)
    return out


def covariance(base: Array, advantage: Array, mask: Mask) -> Array:
    """(A - mean A)(lp - mean lp), means over the batch's policy tokens (A15)."""
    chosen = [(i, t) for i in live_rows(mask) for t in row_tokens(mask, i)]
    mean_a = sum(advantage[p] for p in chosen) / len(chosen)
    mean_lp = sum(base[p] for p in chosen) / len(chosen)
    return each(mask, lambda i, t: (advantage[i, t] - mean_a) * (base[i, t] - mean_lp))


def clip_cov_candidates(
    base: Array,
    old: Array,
    advantage: Array,
    mask: Mask,
    lower: float = 1.0,
    upper: float = 5.0,
    low: float = 0.2,
    high: float = 0.2,
) -> set[Position]:
    """Tokens whose covariance lies strictly between the bounds and whose gradient the PPO clip left alive (A15)."""
    cov = covariance(base, advantage, mask)

    def alive(i: int, t: int) -> bool:
        r, a = exp(base[i, t] - old[i, t]), advantage[i, t]
        return not ((a > 0 and r > 1 + high) or (a < 0 and r < 1 - low))

    return {(i, t) for i in live_rows(mask) for t in row_tokens(mask, i) if lower < cov[i, t] < upper and alive(i, t)}


def clip_cov(
    moved: Array,
    old: Array,
    advantage: Array,
    mask: Mask,
    dropped: Collection[Position],
    low: float = 0.2,
    high: float = 0.2,
) -> Array:
    """PPO clip with the loss of the `dropped` tokens set to 0 (A15): the draw itself is the caller's."""
    loss = ppo(moved, old, advantage, mask, low, high)
    for position in dropped:
        loss[position] = 0.0
    return loss


def top_covariance(base: Array, advantage: Array, mask: Mask, count: int) -> set[Position]:
    """The `count` policy tokens of largest covariance; ties go to the earlier row, then position."""
    cov = covariance(base, advantage, mask)
    order = sorted(
        ((i, t) for i in live_rows(mask) for t in row_tokens(mask, i)), key=lambda p: (-float(cov[p]), p[0], p[1])
    )
    return set(order[:count])


def kl_cov(
    moved: Array, old: Array, advantage: Array, mask: Mask, chosen: Collection[Position], coefficient: float = 1.0
) -> Array:
    """-A r, plus coefficient |lp - log pi_old| on the chosen tokens (A15)."""
    return each(
        mask,
        lambda i, t: (
            -advantage[i, t] * exp(moved[i, t] - old[i, t])
            + (coefficient * abs(moved[i, t] - old[i, t]) if (i, t) in chosen else 0.0)
        ),
    )


def binary_divergence(kind: str, log_p: float, log_q: float, tiny: float = 1e-12) -> float:
    """Between sampler probability q and policy probability p of the token: tv |q - p|, kl q log(q/p) + rest (A16).

    The rest is (1-q) log((1-q)/(1-p)), with both complements kept at or above `tiny`.
    """
    p, q = exp(log_p), exp(log_q)
    if kind == "tv":
        return abs(q - p)
    rest_q, rest_p = max(1 - q, tiny), max(1 - p, tiny)
    return q * (log_q - log_p) + rest_q * log(rest_q / rest_p)


def dppo_keep(base: Array, rollout: Array, advantage: Array, mask: Mask, kind: str, delta: float) -> Array:
    """0 iff the divergence exceeds delta and the update moves further out (A>0 and rho>1, or A<0 and rho<1) (A16)."""

    def rule(i: int, t: int) -> float:
        a = advantage[i, t]
        away = (a > 0 and base[i, t] > rollout[i, t]) or (a < 0 and base[i, t] < rollout[i, t])
        return float(not (away and binary_divergence(kind, base[i, t], rollout[i, t]) > delta))

    return each(mask, rule)


def prime_rl(
    base: Array,
    moved: Array,
    rollout: Array,
    advantage: Array,
    mask: Mask,
    kind: str = "default",
    bound: float | None = None,
    tau: float = 1e-3,
) -> Array:
    """-keep A rho + tau (log rho)^2, rho = pi / mu with gradient and without cap (A20).

    d = pi - mu at `base`. default: drop (A > 0 and d > bound) or (A <= 0 and d < -bound), bound 0.2.
    ipo: keep |d| <= bound, bound 0.1. The second term is on every token.
    """
    limit = {"default": 0.2, "ipo": 0.1}[kind] if bound is None else bound

    def keep(i: int, t: int) -> bool:
        d = exp(base[i, t]) - exp(rollout[i, t])
        if kind == "ipo":
            return abs(d) <= limit
        return not ((advantage[i, t] > 0 and d > limit) or (advantage[i, t] <= 0 and d < -limit))

    def rule(i: int, t: int) -> float:
        x = moved[i, t] - rollout[i, t]
        return (-advantage[i, t] * exp(x) if keep(i, t) else 0.0) + tau * x * x

    return each(mask, rule)

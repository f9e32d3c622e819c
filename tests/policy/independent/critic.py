"""Generalised advantage estimation over policy tokens, the clipped value loss, explained variance (sheet, A5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Array, Mask, aggregate, live_rows, row_tokens


def gae(
    token_rewards: Array,
    values: Array,
    mask: Mask,
    gamma: float = 1.0,
    lam: float = 1.0,
    last_value: Array | None = None,
) -> tuple[Array, Array]:
    """(advantages, returns), both (S, T), 0 outside the mask.

    d_t = r_t + gamma V_next - V_t and A_t = d_t + gamma lam A_next, where next is the row's next policy token: tool
    tokens are stepped over and their values are never read. `last_value` (S,) stands for V after the last policy token
    (bootstrapping a truncated response); 0 unless given. Returns are A + V, before any whitening.
    """
    advantages, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for i in live_rows(mask):
        next_value = 0.0 if last_value is None else float(last_value[i])
        next_advantage = 0.0
        for t in reversed(row_tokens(mask, i)):
            delta = token_rewards[i, t] + gamma * next_value - values[i, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = float(values[i, t])
            advantages[i, t] = next_advantage
            returns[i, t] = next_advantage + next_value
    return advantages, returns


def gae_by_sum(
    token_rewards: Array,
    values: Array,
    mask: Mask,
    gamma: float = 1.0,
    lam: float = 1.0,
    last_value: Array | None = None,
) -> Array:
    """The same advantages as the explicit sum over l of (gamma lam)^l d_{t+l}: a check of the recursion."""
    advantages = np.zeros(mask.shape)
    for i in live_rows(mask):
        positions = row_tokens(mask, i)
        after = [*(values[i, t] for t in positions[1:]), 0.0 if last_value is None else last_value[i]]
        deltas = [token_rewards[i, t] + gamma * v - values[i, t] for t, v in zip(positions, after, strict=True)]
        for index, t in enumerate(positions):
            advantages[i, t] = sum((gamma * lam) ** step * d for step, d in enumerate(deltas[index:]))
    return advantages


def value_loss(
    values_old: Array,
    returns: Array,
    mask: Mask,
    clip: float | None = 0.2,
    factor: float = 0.5,
    how: str = "token_mean",
    constant: float = 1.0,
) -> Callable[[Array], float]:
    """predicted values (S, T) -> factor * aggregate of max((V - Ret)^2, (V_old + clamp(V - V_old, +-clip) - Ret)^2).

    Differentiate it with `finite_difference`; `clip` None is the plain squared error.
    """

    def loss(values: Array) -> float:
        token = np.zeros(mask.shape)
        for i in live_rows(mask):
            for t in row_tokens(mask, i):
                free = (values[i, t] - returns[i, t]) ** 2
                if clip is None:
                    token[i, t] = free
                    continue
                near = min(max(values[i, t], values_old[i, t] - clip), values_old[i, t] + clip)
                token[i, t] = max(free, (near - returns[i, t]) ** 2)
        return factor * aggregate(token, mask, how, constant=constant)

    return loss


def explained_variance(values: Array, returns: Array, mask: Mask) -> float:
    """1 - Var(returns - values) / Var(returns) over the batch's policy tokens (population variance).

    NaN when the returns do not vary: nothing is there to explain.
    """
    chosen = [(i, t) for i in live_rows(mask) for t in row_tokens(mask, i)]
    target = np.array([returns[p] for p in chosen])
    if len(chosen) == 0 or target.max() == target.min():
        return float("nan")
    error = np.array([returns[p] - values[p] for p in chosen])
    return float(1 - ((error - error.mean()) ** 2).mean() / ((target - target.mean()) ** 2).mean())

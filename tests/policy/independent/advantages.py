"""Advantages from outcome rewards (formula sheet, section A). Fully masked rows take part in nothing and get 0.

A group whose live rewards are all equal (max - min == 0; a group of one included) has group-relative advantage exactly
0. ReMax and REINFORCE++ without baseline do not compare inside a group, so the rule does not touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, Mask, live_rows, per_token, row_tokens

Groups = NDArray[np.int64]


def by_group(rewards: Array, group_ids: Groups, mask: Mask, rule: Callable[[list[float]], Sequence[float]]) -> Array:
    """Apply `rule` (rewards of the live rows of one group, in row order -> their advantages) to every group."""
    out = np.zeros(len(rewards))
    alive = live_rows(mask)
    for name in sorted({int(group_ids[i]) for i in alive}):
        members = [i for i in alive if group_ids[i] == name]
        values = [float(rewards[i]) for i in members]
        if max(values) - min(values) == 0:
            continue
        for i, advantage in zip(members, rule(values), strict=True):
            out[i] = advantage
    return out


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def std(values: Sequence[float], ddof: int) -> float:
    centre = mean(values)
    return sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - ddof))


def centred(rewards: Array, group_ids: Groups, mask: Mask) -> Array:
    """R_i - mean of its group (A8)."""
    return by_group(rewards, group_ids, mask, lambda rs: [r - mean(rs) for r in rs])


def standardised(rewards: Array, group_ids: Groups, mask: Mask, ddof: int = 1, eps: float = 1e-6) -> Array:
    """(R_i - group mean) / (group std + eps) (A7)."""
    return by_group(rewards, group_ids, mask, lambda rs: [(r - mean(rs)) / (std(rs, ddof) + eps) for r in rs])


def leave_one_out(rewards: Array, group_ids: Groups, mask: Mask) -> Array:
    """R_i - mean of the others of the group (A2); a group of one: 0."""
    return by_group(rewards, group_ids, mask, lambda rs: [r - mean([*rs[:j], *rs[j + 1 :]]) for j, r in enumerate(rs)])


def maxrl(rewards: Array, group_ids: Groups, mask: Mask, eps: float = 0.0) -> Array:
    """(R_i - group mean) / (group mean + eps); 0 for a group of mean 0 (A12)."""
    return by_group(
        rewards,
        group_ids,
        mask,
        lambda rs: [0.0 for _ in rs] if mean(rs) == 0 else [(r - mean(rs)) / (mean(rs) + eps) for r in rs],
    )


def batch_std(rewards: Array, group_ids: Groups, mask: Mask, ddof: int = 0, eps: float = 0.0) -> Array:
    """Centred rewards over the std of all centred rewards of the batch, rows of constant groups included (A19)."""
    raw = centred(rewards, group_ids, mask)
    alive = live_rows(mask)
    if len(alive) <= ddof:
        return np.zeros(len(rewards))
    scale = std([float(raw[i]) for i in alive], ddof) + eps
    return np.zeros(len(rewards)) if scale == 0 else raw / scale


def remax(rewards: Array, greedy_rewards: Array, mask: Mask) -> Array:
    """R_i - R of the greedy response to the same prompt (A3)."""
    out = np.zeros(len(rewards))
    for i in live_rows(mask):
        out[i] = rewards[i] - greedy_rewards[i]
    return out


def opo(rewards: Array, group_ids: Groups, mask: Mask) -> Array:
    """R_i - sum len_j R_j / sum len_j over the group, len = number of policy tokens."""
    out = np.zeros(len(rewards))
    alive = live_rows(mask)
    for i in alive:
        members = [j for j in alive if group_ids[j] == group_ids[i]]
        if max(rewards[j] for j in members) == min(rewards[j] for j in members):
            continue
        sizes = {j: len(row_tokens(mask, j)) for j in members}
        out[i] = rewards[i] - sum(sizes[j] * rewards[j] for j in members) / sum(sizes.values())
    return out


def second_best(
    rewards: Array, group_ids: Groups, mask: Mask, *, divide_by_std: bool = False, ddof: int = 1, eps: float = 1e-6
) -> Array:
    """Only the best response gets R_max - R_second, optionally over (group std + eps); a tie gives 0 (A22)."""

    def rule(rs: list[float]) -> list[float]:
        first, second = sorted(rs, reverse=True)[:2]
        lead = (first - second) / ((std(rs, ddof) + eps) if divide_by_std else 1.0)
        return [lead if j == rs.index(first) else 0.0 for j in range(len(rs))]

    return by_group(rewards, group_ids, mask, rule)


def pass_at_k(rewards: Array, group_ids: Groups, mask: Mask, k: int) -> Array:
    """Pass@k training (A22): success = reward > 0; 0 where sigma is 0. A group smaller than k raises ValueError."""

    def rule(rs: list[float]) -> list[float]:
        n, wrong = len(rs), sum(r <= 0 for r in rs)
        if n < k:
            raise ValueError(f"pass@{k} needs groups of at least {k}, got {n}")
        expected = 1 - comb(wrong, k) / comb(n, k)
        sigma = sqrt(expected * (1 - expected))
        if sigma == 0:
            return [0.0] * n
        good = (1 - expected) / sigma
        bad = (1 - expected - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / sigma
        return [good if r > 0 else bad for r in rs]

    return by_group(rewards, group_ids, mask, rule)


def whiten_tokens(values: Array, mask: Mask, eps: float = 1e-8) -> Array:
    """(v - mean) / sqrt(Bessel variance + eps) over all policy tokens of the batch; 0 elsewhere (A4)."""
    flat = [float(values[i, t]) for i in live_rows(mask) for t in row_tokens(mask, i)]
    out = np.zeros(mask.shape)
    if len(flat) < 2:
        return out
    centre, spread = mean(flat), std(flat, 1)
    for i in live_rows(mask):
        for t in row_tokens(mask, i):
            out[i, t] = (values[i, t] - centre) / sqrt(spread**2 + eps)
    return out


def return_to_go(token_rewards: Array, mask: Mask, gamma: float = 1.0) -> Array:
    """G_t = r_t + gamma G_next over the policy tokens of each row (A4)."""
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        following = 0.0
        for t in reversed(row_tokens(mask, i)):
            following = token_rewards[i, t] + gamma * following
            out[i, t] = following
    return out


def token_rewards(rewards: Array, mask: Mask, k1: Array | None = None, beta: float = 0.0) -> Array:
    """R on the row's last policy token, minus beta * k1 on every policy token (A4, C)."""
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        positions = row_tokens(mask, i)
        out[i, positions[-1]] = rewards[i]
        if k1 is not None:
            for t in positions:
                out[i, t] -= beta * k1[i, t]
    return out


def reinforce_plus_plus(
    rewards: Array, mask: Mask, k1: Array | None = None, beta: float = 0.0, gamma: float = 1.0
) -> Array:
    """(S, T): return-to-go of reward minus beta * k1, whitened over the batch's tokens (A4)."""
    return whiten_tokens(return_to_go(token_rewards(rewards, mask, k1, beta), mask, gamma), mask)


def reinforce_plus_plus_baseline(rewards: Array, group_ids: Groups, mask: Mask) -> Array:
    """(S, T): centred in the group (no std), on every token, whitened over the batch's tokens (A4)."""
    return whiten_tokens(per_token(centred(rewards, group_ids, mask), mask), mask)


def gdpo(
    parts: Array,
    weights: Sequence[float],
    group_ids: Groups,
    mask: Mask,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    over: str = "rows",
) -> Array:
    """Each reward part (S, P) standardised in its group, weighted sum, whitened over the batch.

    `over` rows: (x - mean) / (std + eps) over live rows, result (S,). `over` tokens: `whiten_tokens`, result (S, T).
    """
    total = np.zeros(parts.shape[0])
    for p, weight in enumerate(weights):
        total = total + weight * standardised(parts[:, p], group_ids, mask, ddof, eps)
    if over == "tokens":
        return whiten_tokens(per_token(total, mask), mask)
    alive = live_rows(mask)
    values = [float(total[i]) for i in alive]
    out = np.zeros(parts.shape[0])
    if len(values) <= ddof or max(values) == min(values):
        return out
    for i in alive:
        out[i] = (total[i] - mean(values)) / (std(values, ddof) + eps)
    return out

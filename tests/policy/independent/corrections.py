"""Weights and masks for the gap between sampler and trainer (section B), OPSM (A23), KL estimators (section C).

Weights are constants: they are computed from log-probs that carry no gradient. All results are (S, T), 0 where the mask
is False. `w` = exp(logp_old - logp_rollout) unless another pair is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf

import numpy as np

from .arrays import Array, Mask, live_rows, row_tokens


def product(logs: list[float]) -> float:
    """exp of the sum, inf where a float cannot hold it."""
    total = sum(logs)
    return exp(total) if total < 700 else inf


def log_weights(numerator: Array, denominator: Array, mask: Mask) -> list[tuple[int, list[int], list[float]]]:
    """Per live row: its index, its token positions, their log-weights."""
    return [
        (i, row_tokens(mask, i), [float(numerator[i, t] - denominator[i, t]) for t in row_tokens(mask, i)])
        for i in live_rows(mask)
    ]


def token_weight(old: Array, rollout: Array, mask: Mask, rule: Callable[[float], float]) -> Array:
    """rule(w) per token."""
    out = np.zeros(mask.shape)
    for i, positions, logs in log_weights(old, rollout, mask):
        for t, x in zip(positions, logs, strict=True):
            out[i, t] = rule(exp(x))
    return out


def row_weight(old: Array, rollout: Array, mask: Mask, rule: Callable[[list[float]], float]) -> Array:
    """rule(log-weights of the row), the same on each of its tokens."""
    out = np.zeros(mask.shape)
    for i, positions, logs in log_weights(old, rollout, mask):
        out[i, positions] = rule(logs)
    return out


def truncated(old: Array, rollout: Array, mask: Mask, cap: float | None) -> Array:
    """min(w, cap); no cap: w."""
    return token_weight(old, rollout, mask, lambda w: w if cap is None else min(w, cap))


def clipped(old: Array, rollout: Array, mask: Mask, low: float, high: float) -> Array:
    """w held in [low, high]."""
    return token_weight(old, rollout, mask, lambda w: min(max(w, low), high))


def icepop(old: Array, rollout: Array, mask: Mask, low: float, high: float) -> Array:
    """w inside [low, high], else 0. The token form of masked importance sampling is the same rule."""
    return token_weight(old, rollout, mask, lambda w: w if low <= w <= high else 0.0)


def sequence_truncated(old: Array, rollout: Array, mask: Mask, cap: float) -> Array:
    """min(product of the row's w, cap)."""
    return row_weight(old, rollout, mask, lambda logs: min(product(logs), cap))


def sequence_masked(old: Array, rollout: Array, mask: Mask, low: float, high: float) -> Array:
    """Product of the row's w if inside [low, high], else 0."""
    return row_weight(old, rollout, mask, lambda logs: product(logs) if low <= product(logs) <= high else 0.0)


def geometric_keep(old: Array, rollout: Array, mask: Mask, low: float, high: float) -> Array:
    """1 on rows whose geometric mean of w is inside [low, high], else 0."""
    return row_weight(old, rollout, mask, lambda logs: float(low <= exp(sum(logs) / len(logs)) <= high))


def divergence_keep(old: Array, rollout: Array, mask: Mask, kind: str, limit: float) -> Array:
    """1 on rows whose mean k2 (x**2 / 2) or k3 (w - 1 - x) of the log-weights x is at most `limit`, else 0."""
    value = {"k2": lambda x: x * x / 2, "k3": lambda x: exp(x) - 1 - x}[kind]
    return row_weight(old, rollout, mask, lambda logs: float(sum(value(x) for x in logs) / len(logs) <= limit))


def veto_keep(old: Array, rollout: Array, mask: Mask, lowest: float, highest: float | None = None) -> Array:
    """0 on rows where any w is below `lowest` or above `highest`, else 1."""
    return row_weight(
        old,
        rollout,
        mask,
        lambda logs: float(all(exp(x) >= lowest and (highest is None or exp(x) <= highest) for x in logs)),
    )


def batch_normalised(weights: Array, mask: Mask) -> Array:
    """weights / their mean over the batch's policy tokens, after truncation."""
    flat = [float(weights[i, t]) for i in live_rows(mask) for t in row_tokens(mask, i)]
    return weights / (sum(flat) / len(flat))


def opsm_keep(base: Array, rollout: Array, mask: Mask, row_advantage: Array, delta: float) -> Array:
    """0 on rows with A < 0 and mean(log mu - log pi) > delta, else 1 (A23)."""
    out = np.zeros(mask.shape)
    for i, positions, logs in log_weights(rollout, base, mask):
        out[i, positions] = float(not (row_advantage[i] < 0 and sum(logs) / len(logs) > delta))
    return out


def kl_token(kind: str, base: Array, moved: Array, ref: Array, mask: Mask, sampler: Array | None = None) -> Array:
    """Per-token estimate of KL(pi || ref) from tokens sampled by pi, or by `sampler` for the ratio forms (C).

    k1, k2, k3; `k3_ratio` = (pi / sampler) k3 with gradient in the ratio; `k2_ratio` = sg(pi / sampler) k2.
    """
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        for t in row_tokens(mask, i):
            x = moved[i, t] - ref[i, t]
            k3 = np.exp(-x) - 1 + x
            if kind == "k1":
                out[i, t] = x
            elif kind == "k2":
                out[i, t] = x * x / 2
            elif kind == "k3":
                out[i, t] = k3
            elif kind == "k3_ratio" and sampler is not None:
                out[i, t] = np.exp(moved[i, t] - sampler[i, t]) * k3
            elif kind == "k2_ratio" and sampler is not None:
                out[i, t] = np.exp(base[i, t] - sampler[i, t]) * x * x / 2
            else:
                raise ValueError(f"unknown estimator {kind!r}, or a ratio form without sampler")
    return out

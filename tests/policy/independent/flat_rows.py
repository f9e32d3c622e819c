"""Rows without a golden vector over flat tokens, in numpy float64, written from the formula sheet.

Arrays have shape (m,), one entry per trained token: log-probs `new`, `old`, `sampler`, advantage `adv` (a constant),
ids `seq` and `group`. Detached factors are computed at `base` (default `new`); `gradient` holds it still. A log-ratio
is held within +-20 before exp. Each row returns the scalar loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
LIMIT = 20.0


def gradient(loss_function: Callable[..., float], new: Array, *args: Any, step: float = 1e-6, **kw: Any) -> Array:
    """d loss / d new by central differences, with `base` fixed at `new` unless given."""
    base = kw.pop("base", None)
    base = new.copy() if base is None else base
    out = np.zeros(new.shape)
    for k in range(new.size):
        up, down = new.copy(), new.copy()
        up[k] += step
        down[k] -= step
        out[k] = (loss_function(up, *args, base=base, **kw) - loss_function(down, *args, base=base, **kw)) / (2 * step)
    return out


def ratio(log_ratio: Array) -> Array:
    """exp of a log-ratio held within +-20 (A5)."""
    return np.exp(np.clip(log_ratio, -LIMIT, LIMIT))


def members(ids: Ids) -> list[Flags]:
    """One boolean selection of tokens per distinct id."""
    return [ids == name for name in np.unique(ids)]


def sequence_mean(token_loss: Array, seq: Ids) -> float:
    """Mean over sequences of the token mean (0.1)."""
    return float(np.mean([token_loss[tokens].mean() for tokens in members(seq)]))


def ppo_clip(r: Array, adv: Array, low: float, high: float) -> Array:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) (A5)."""
    return np.maximum(-adv * r, -adv * np.clip(r, 1 - low, 1 + high))


def gspo_token(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    low: float = 3e-4,
    high: float = 4e-4,
) -> float:
    """A10: clip on sg(s_i) pi / sg(pi), s_i the geometric mean ratio of the sequence."""
    base = new if base is None else base
    s = np.zeros(new.shape)
    for tokens in members(seq):
        s[tokens] = ratio((base - old)[tokens].mean(keepdims=True))[0]
    return sequence_mean(ppo_clip(s * ratio(new - base), adv, low, high), seq)


def gmpo(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    bound: float = 0.4,
) -> float:
    """A14: -A times the geometric mean of ratios, each log-ratio bounded on the side its advantage's sign pushes to."""
    log_ratio = new - old
    sign = np.sign(adv)
    bounded = sign * np.minimum(sign * log_ratio, sign * np.clip(log_ratio, -bound, bound))
    return float(np.mean([-adv[tokens][0] * ratio(bounded[tokens].mean(keepdims=True))[0] for tokens in members(seq)]))


def sapo(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> float:
    """A13: -(4 / tau) sigmoid(tau (r - 1)) A."""
    tau = np.where(adv > 0, tau_pos, tau_neg)
    gate = 0.5 * (1 + np.tanh(tau * (ratio(new - old) - 1) / 2))
    return sequence_mean(-4 / tau * gate * adv, seq)


def kl_cov(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    *,
    chosen: Flags,
    coef: float = 1.0,
) -> float:
    """A15: -A r, plus coef |log r| on the chosen tokens; token mean."""
    return float(np.mean(-adv * ratio(new - old) + np.where(chosen, coef * np.abs(new - old), 0.0)))


def topr(new: Array, old: Array, sampler: Array, adv: Array, seq: Ids, group: Ids, base: Array | None = None) -> float:
    """A18: `adv` is the signed reward; a negative sequence weighs min(its product ratio to the sampler, 1)."""
    base = new if base is None else base
    losses = []
    for tokens in members(seq):
        reward = adv[tokens][0]
        product = ratio((base - sampler)[tokens].sum(keepdims=True))[0]
        weight = 1.0 if reward >= 0 else min(product, 1.0)
        losses.append(-weight * reward * new[tokens].sum())
    return float(np.mean(losses))


def scalerl(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    cap: float = 5.0,
) -> float:
    """A19: -sg(min(rho, cap)) A log pi; mean over groups of the group's token mean (prompt average)."""
    base = new if base is None else base
    token_loss = -np.minimum(ratio(base - sampler), cap) * adv * new
    return float(np.mean([token_loss[tokens].sum() / tokens.sum() for tokens in members(group)]))


def aipo(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    cap: float = 4.0,
) -> float:
    """A20: -sg(min(rho, cap)) A log pi; token mean."""
    base = new if base is None else base
    return float(np.mean(-np.minimum(ratio(base - sampler), cap) * adv * new))


def kept_surrogate(new: Array, sampler: Array, adv: Array, keep: Flags, penalty: float) -> float:
    """A20: -keep A rho, rho with gradient and no cap, plus penalty (log rho)^2 on every token; token mean."""
    log_rho = new - sampler
    return float(np.mean(np.where(keep, -adv * ratio(log_rho), 0.0) + penalty * log_rho**2))


def prime_rl(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    bound: float = 0.2,
    penalty: float = 1e-3,
) -> float:
    """A20 default: dropped iff the probability moved past `bound` in the direction the advantage pushes."""
    base = new if base is None else base
    moved = np.exp(base) - np.exp(sampler)
    dropped = ((adv > 0) & (moved > bound)) | ((adv <= 0) & (moved < -bound))
    return kept_surrogate(new, sampler, adv, ~dropped, penalty)


def prime_rl_ipo(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    bound: float = 0.1,
    penalty: float = 1e-3,
) -> float:
    """A20 `ipo`: kept iff the probability moved by at most `bound` either way."""
    base = new if base is None else base
    return kept_surrogate(new, sampler, adv, np.abs(np.exp(base) - np.exp(sampler)) <= bound, penalty)


def binary_kl(log_q: Array, log_p: Array, tiny: float = 1e-12) -> Array:
    """A16: q log(q/p) + (1-q) log((1-q)/(1-p)), complements held at or above `tiny`."""
    rest_q, rest_p = np.maximum(-np.expm1(log_q), tiny), np.maximum(-np.expm1(log_p), tiny)
    return np.exp(log_q) * (log_q - log_p) + rest_q * np.log(rest_q / rest_p)


def dppo_kl(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    *,
    length: float,
    delta: float = 0.05,
    cap: float = 20.0,
) -> float:
    """A16: -mask sg(min(rho, cap)) A log pi over (sequences * length); masked when far and moving away."""
    base = new if base is None else base
    away = ((adv > 0) & (base > sampler)) | ((adv < 0) & (base < sampler))
    keep = ~(away & (binary_kl(sampler, base) > delta))
    token_loss = np.where(keep, -np.minimum(ratio(base - sampler), cap) * adv * new, 0.0)
    return float(token_loss.sum() / (np.unique(seq).size * length))


def opsm(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    *,
    delta: float,
    low: float = 0.2,
    high: float = 0.2,
) -> float:
    """A23: PPO clip without the sequences of A < 0 and mean(log mu - log pi) > delta; denominator is every token."""
    base = new if base is None else base
    keep = np.ones(new.shape, dtype=bool)
    for tokens in members(seq):
        keep[tokens] = not (adv[tokens][0] < 0 and (sampler - base)[tokens].mean() > delta)
    return float(np.mean(np.where(keep, ppo_clip(ratio(new - old), adv, low, high), 0.0)))


def trpo_penalty(
    new: Array,
    old: Array,
    sampler: Array,
    adv: Array,
    seq: Ids,
    group: Ids,
    base: Array | None = None,
    *,
    beta: float,
) -> float:
    """Section C with pi_old's samples: -A r + beta (r - 1 - log r), an estimate of KL(old || pi); token mean."""
    log_ratio = np.clip(new - old, -LIMIT, LIMIT)
    r = np.exp(log_ratio)
    return float(np.mean(-adv * r + beta * (r - 1 - log_ratio)))


def adapt(beta: float, kl: float, target: float) -> float:
    """The adaptive penalty of arXiv 1707.06347, section 4: doubled above 1.5 target, halved below target / 1.5."""
    if kl > 1.5 * target:
        return 2 * beta
    return beta / 2 if kl < target / 1.5 else beta


def gdpo(parts: Array, weights: Sequence[float], group_ids: Ids, ddof: int = 1, eps: float = 1e-6) -> Array:
    """A23: each reward part (S, K) standardised in its group, weighted sum, then whitened over the batch (S,).

    A group constant in a part (one member included) gives 0 for that part; so does a constant batch. The last step
    is A4's: (x - mean) / sqrt(Bessel variance + eps).
    """
    total = np.zeros(parts.shape[0])
    for part, weight in zip(parts.T, weights, strict=True):
        for rows in members(group_ids):
            values = part[rows]
            if values.max() > values.min():
                total[rows] += weight * (values - values.mean()) / (values.std(ddof=ddof) + eps)
    if total.size < 2:
        return np.zeros(total.shape)
    return (total - total.mean()) / np.sqrt(total.var(ddof=1) + eps)

"""Whole methods: each function takes a `Batch` (and the method's numbers) and returns a `Loss` (base, moved) -> float.

Defaults are the published ones of the formula sheet. Advantages are computed from the batch unless passed.
"""

from __future__ import annotations

from collections.abc import Collection
from math import exp

import numpy as np

from . import advantages as adv
from . import corrections
from . import token_losses as tok
from .arrays import Array, Batch, Loss, aggregate, live_rows, need, per_token, row_tokens


def token_advantage(batch: Batch, advantage: Array | None, default: str) -> Array:
    """(S, T): the given advantages, else `default`: centred, standardised, leave_one_out, batch_std or raw."""
    if advantage is not None:
        return per_token(advantage, batch.mask)
    rewards = need(batch.rewards, "rewards")
    if default == "raw":
        return per_token(rewards, batch.mask)
    return per_token(getattr(adv, default)(rewards, need(batch.group_ids, "group_ids"), batch.mask), batch.mask)


def row_advantage(batch: Batch, advantage: Array | None, default: str) -> Array:
    """(S,): the given advantages, else `default` as in `token_advantage`."""
    if advantage is not None:
        return advantage
    rewards = need(batch.rewards, "rewards")
    return (
        rewards if default == "raw" else getattr(adv, default)(rewards, need(batch.group_ids, "group_ids"), batch.mask)
    )


def reinforce(batch: Batch, advantage: Array | None = None, how: str = "sequence_mean_token_sum") -> Loss:
    """REINFORCE form: -A lp, the sequence one action (A1, A2, A3); leave-one-out advantage unless given."""
    a = token_advantage(batch, advantage, "leave_one_out")
    return lambda base, moved: aggregate(
        tok.reinforce(moved, a, batch.mask), batch.mask, how, group_ids=batch.group_ids
    )


def clipped(
    batch: Batch,
    advantage: Array | None = None,
    *,
    default: str = "standardised",
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    delta: float | None = None,
    how: str = "token_mean",
    constant: float = 1.0,
    weights: Array | None = None,
    kept_denominator: bool = False,
) -> Loss:
    """The clipped surrogate: PPO, GRPO, Dr.GRPO, DAPO, MaxRL, REINFORCE++, two-sided, decoupled (A4-A9, A12, A17, A20).

    `weights` (S, T), constants, multiply the loss after the clip (section B). With `kept_denominator` tokens of
    weight 0 leave the denominators.
    """
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, default)
    factor = np.ones(batch.mask.shape) if weights is None else weights
    counted = batch.mask & (factor != 0) if kept_denominator else batch.mask

    def loss(base: Array, moved: Array) -> float:
        value = tok.ppo(moved, old, a, batch.mask, low, high, dual, delta) * factor
        return aggregate(value, batch.mask, how, group_ids=batch.group_ids, constant=constant, counted=counted)

    return loss


def decoupled(
    batch: Batch, advantage: Array | None = None, *, cap: float | None = None, low: float = 0.2, high: float = 0.2
) -> Loss:
    """Decoupled PPO (A17): sg(min(pi_prox / mu, cap)) times the clipped surrogate around pi_prox, token mean."""
    weights = corrections.truncated(
        need(batch.logp_old, "logp_old"), need(batch.logp_rollout, "logp_rollout"), batch.mask, cap
    )
    return clipped(batch, advantage, low=low, high=high, weights=weights)


def gspo(batch: Batch, advantage: Array | None = None, low: float = 3e-4, high: float = 4e-4) -> Loss:
    """GSPO (A10): one clipped term per row with its geometric mean ratio, mean over rows."""
    old = need(batch.logp_old, "logp_old")
    a = row_advantage(batch, advantage, "standardised")

    def loss(base: Array, moved: Array) -> float:
        rows = live_rows(batch.mask)
        total = 0.0
        for i in rows:
            positions = row_tokens(batch.mask, i)
            s = exp(sum(moved[i, t] - old[i, t] for t in positions) / len(positions))
            total += tok.clip_loss(s, a[i], low, high)
        return total / len(rows) if rows else 0.0

    return loss


def gspo_token(
    batch: Batch,
    advantage: Array | None = None,
    low: float = 3e-4,
    high: float = 4e-4,
    how: str = "sequence_mean_token_mean",
) -> Loss:
    """GSPO-token (A10); with one advantage per row its value and gradient equal GSPO's."""
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")
    return lambda base, moved: aggregate(tok.gspo_token(base, moved, old, a, batch.mask, low, high), batch.mask, how)


def gmpo(batch: Batch, advantage: Array | None = None, bound: float = 0.4) -> Loss:
    """GMPO (A14): -mean_i A_i exp(mean_t of the log-ratio clipped at +-bound on the side of sgn A)."""
    old = need(batch.logp_old, "logp_old")
    a = row_advantage(batch, advantage, "standardised")

    def loss(base: Array, moved: Array) -> float:
        rows = live_rows(batch.mask)
        total = 0.0
        for i in rows:
            sign = float(np.sign(a[i]))
            logs = [float(moved[i, t] - old[i, t]) for t in row_tokens(batch.mask, i)]
            kept = [sign * min(sign * x, sign * min(max(x, -bound), bound)) for x in logs]
            total -= a[i] * exp(sum(kept) / len(kept))
        return total / len(rows) if rows else 0.0

    return loss


def cispo(batch: Batch, advantage: Array | None = None, cap: float = 5.0, low: float = 0.0) -> Loss:
    """CISPO (A11): sg(clip(pi / pi_old, low, cap)) A lp, token mean; `cap` is the ratio itself, not the excess."""
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")
    return lambda base, moved: aggregate(
        tok.capped_reinforce(base, moved, old, a, batch.mask, cap, low), batch.mask, "token_mean"
    )


def aipo(batch: Batch, advantage: Array | None = None, cap: float = 2.0) -> Loss:
    """AIPO (A20): -sg(min(pi / mu, cap)) A lp, token mean; centred advantage unless given."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = token_advantage(batch, advantage, "centred")
    return lambda base, moved: aggregate(
        tok.capped_reinforce(base, moved, mu, a, batch.mask, cap), batch.mask, "token_mean"
    )


def scalerl(batch: Batch, advantage: Array | None = None, cap: float = 5.0) -> Loss:
    """ScaleRL (A19): -sg(min(pi / mu, cap)) A lp, A over the batch's population std, prompt average."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = token_advantage(batch, advantage, "batch_std")
    return lambda base, moved: aggregate(
        tok.capped_reinforce(base, moved, mu, a, batch.mask, cap), batch.mask, "prompt_mean", group_ids=batch.group_ids
    )


def sapo(batch: Batch, advantage: Array | None = None, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Loss:
    """SAPO (A13), mean over rows of token means."""
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")
    return lambda base, moved: aggregate(
        tok.sapo(moved, old, a, batch.mask, tau_pos, tau_neg), batch.mask, "sequence_mean_token_mean"
    )


def clip_cov(
    batch: Batch,
    dropped: Collection[tuple[int, int]],
    advantage: Array | None = None,
    low: float = 0.2,
    high: float = 0.2,
) -> Loss:
    """Clip-Cov (A15) for a given set of dropped (row, position), token mean over all policy tokens."""
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")
    return lambda base, moved: aggregate(
        tok.clip_cov(moved, old, a, batch.mask, dropped, low, high), batch.mask, "token_mean"
    )


def kl_cov(batch: Batch, count: int, advantage: Array | None = None, coefficient: float = 1.0) -> Loss:
    """KL-Cov (A15): the `count` tokens of largest covariance pay coefficient |log r|; token mean."""
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")

    def loss(base: Array, moved: Array) -> float:
        chosen = tok.top_covariance(base, a, batch.mask, count)
        return aggregate(tok.kl_cov(moved, old, a, batch.mask, chosen, coefficient), batch.mask, "token_mean")

    return loss


def dppo(
    batch: Batch,
    advantage: Array | None = None,
    *,
    kind: str = "kl",
    delta: float = 0.05,
    cap: float | None = 20.0,
    constant: float = 1.0,
    how: str = "constant",
) -> Loss:
    """DPPO (A16): -mask sg(min(pi / mu, cap)) A lp over rows * constant; dropped tokens stay in the denominator."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = token_advantage(batch, advantage, "centred")

    def loss(base: Array, moved: Array) -> float:
        keep = tok.dppo_keep(base, mu, a, batch.mask, kind, delta)
        value = tok.capped_reinforce(base, moved, mu, a, batch.mask, cap) * keep
        return aggregate(value, batch.mask, how, constant=constant, group_ids=batch.group_ids)

    return loss


def topr(batch: Batch, advantage: Array | None = None) -> Loss:
    """TOPR (A18): -mean_i w_i R_i sum_t lp, w = 1 for R >= 0, else sg(min(product of pi / mu, 1)); raw rewards."""
    mu = need(batch.logp_rollout, "logp_rollout")
    signed = row_advantage(batch, advantage, "raw")

    def loss(base: Array, moved: Array) -> float:
        rows = live_rows(batch.mask)
        total = 0.0
        for i in rows:
            positions = row_tokens(batch.mask, i)
            weight = 1.0 if signed[i] >= 0 else exp(min(0.0, sum(base[i, t] - mu[i, t] for t in positions)))
            total -= weight * signed[i] * sum(moved[i, t] for t in positions)
        return total / len(rows) if rows else 0.0

    return loss


def prime_rl(
    batch: Batch, advantage: Array | None = None, kind: str = "default", bound: float | None = None, tau: float = 1e-3
) -> Loss:
    """prime-rl's default loss or its ipo kind (A20), token mean; centred advantage unless given."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = token_advantage(batch, advantage, "centred")
    return lambda base, moved: aggregate(
        tok.prime_rl(base, moved, mu, a, batch.mask, kind, bound, tau), batch.mask, "token_mean"
    )


def double_sided(batch: Batch, advantage: Array | None = None, low: float = 0.125, high: float = 8.0) -> Loss:
    """prime-rl of late 2025 (A20): -A rho on tokens whose rho = pi / mu is inside [low, high], over all tokens."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = token_advantage(batch, advantage, "centred")

    def loss(base: Array, moved: Array) -> float:
        keep = corrections.token_weight(base, mu, batch.mask, lambda rho: float(low <= rho <= high))
        return aggregate(tok.surrogate(moved, mu, a, batch.mask) * keep, batch.mask, "token_mean")

    return loss


def trpo(batch: Batch, advantage: Array | None = None, beta: float = 1.0, how: str = "token_mean") -> Loss:
    """KL-penalised form of TRPO (A6): -A r + beta k3 of KL(old || pi) on the sampled tokens, r = pi / pi_old.

    k3 = r - 1 - log r: the samples are pi_old's, so E k3 = KL(old || pi); gradient per token beta (r - 1).
    """
    old = need(batch.logp_old, "logp_old")
    a = token_advantage(batch, advantage, "standardised")

    def rule(moved: Array) -> Array:
        return tok.each(
            batch.mask,
            lambda i, t: exp(moved[i, t] - old[i, t]) - 1 - (moved[i, t] - old[i, t]),
        )

    return lambda base, moved: aggregate(
        tok.surrogate(moved, old, a, batch.mask) + beta * rule(moved), batch.mask, how, group_ids=batch.group_ids
    )


def adapt_beta(beta: float, kl: float, target: float) -> float:
    """The next step's beta: doubled for kl > 1.5 target, halved for kl < target / 1.5."""
    if kl > 1.5 * target:
        return 2 * beta
    return beta / 2 if kl < target / 1.5 else beta


def kl_loss(batch: Batch, kind: str, how: str = "token_mean") -> Loss:
    """KL(pi || ref) as a loss (C): `kind` of `corrections.kl_token`, ratio forms against `logp_old`."""
    ref = need(batch.logp_ref, "logp_ref")

    def loss(base: Array, moved: Array) -> float:
        value = corrections.kl_token(kind, base, moved, ref, batch.mask, batch.logp_old)
        return aggregate(value, batch.mask, how, group_ids=batch.group_ids)

    return loss


def plus(*terms: tuple[float, Loss]) -> Loss:
    """Weighted sum of losses."""
    return lambda base, moved: sum(weight * term(base, moved) for weight, term in terms)

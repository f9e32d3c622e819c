"""On-policy distillation (formula sheet, section E).

Single-sample forms take (S, T) log-probs of the sampled token; full-vocabulary forms take (S, T, V) logits of student
and teacher, and `vocabulary_gradient` differentiates them in the student's logits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import numpy as np

from .arrays import Array, Batch, Loss, Mask, aggregate, live_rows, need, row_tokens
from .token_losses import each, surrogate


def opd_advantage(sampler: Array, teacher: Array, mask: Mask, coefficient: float = 1.0) -> Array:
    """(S, T): -coefficient (log mu - log teacher), a constant; each token answers for itself only (E1)."""
    return each(mask, lambda i, t: -coefficient * (sampler[i, t] - teacher[i, t]))


def opd(batch: Batch, teacher: Array, coefficient: float = 1.0, how: str = "token_mean") -> Loss:
    """-(pi / mu) A with the advantage above, no bound (E1); summed by `how`."""
    mu = need(batch.logp_rollout, "logp_rollout")
    a = opd_advantage(mu, teacher, batch.mask, coefficient)
    return lambda base, moved: aggregate(
        surrogate(moved, mu, a, batch.mask), batch.mask, how, group_ids=batch.group_ids
    )


def prime_rl_ref_kl(batch: Batch, teacher: Array, bound: float = 0.2, tau: float = 1e-3) -> Loss:
    """-keep sg(log teacher - lp) pi / mu + tau (log rho)^2, keep = 0 iff pi - mu < -bound; token mean (E2)."""
    mu = need(batch.logp_rollout, "logp_rollout")

    def loss(base: Array, moved: Array) -> float:
        def rule(i: int, t: int) -> float:
            keep = exp(base[i, t]) - exp(mu[i, t]) >= -bound
            x = moved[i, t] - mu[i, t]
            return (-(teacher[i, t] - base[i, t]) * exp(x) if keep else 0.0) + tau * x * x

        return aggregate(each(batch.mask, rule), batch.mask, "token_mean")

    return loss


def log_softmax(logits: Array) -> Array:
    """(V,) logits -> (V,) log-probs."""
    top = logits.max()
    return logits - top - np.log(np.exp(logits - top).sum())


def kl(log_p: Array, log_q: Array) -> float:
    """KL(P || Q) = sum P (log P - log Q), entries of probability 0 contribute 0."""
    return float(sum(exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True) if a > -np.inf))


def jsd(log_teacher: Array, log_student: Array, beta: float = 0.5) -> float:
    """beta KL(P || M) + (1 - beta) KL(Q || M), M = beta P + (1 - beta) Q, P teacher, Q student (E3).

    At the ends the exact divergences: beta 0 is KL(P || Q) (forward), beta 1 is KL(Q || P) (reverse).
    """
    if beta == 0:
        return kl(log_teacher, log_student)
    if beta == 1:
        return kl(log_student, log_teacher)
    mixed = np.logaddexp(np.log(beta) + log_teacher, np.log(1 - beta) + log_student)
    return beta * kl(log_teacher, mixed) + (1 - beta) * kl(log_student, mixed)


def with_tail(log_probs: Array, support: list[int], tiny: float = 1e-12) -> Array:
    """(K + 1,): the support's log-probs and the log of all other mass, 1 - sum, at least `tiny` (E3)."""
    kept = log_probs[support]
    return np.append(kept, np.log(max(1 - np.exp(kept).sum(), tiny)))


def renormalised(log_probs: Array, support: list[int]) -> Array:
    """(K,): log-probs of the support divided by the support's mass (E3)."""
    return log_softmax(log_probs[support])


def top_support(logits: Array, k: int) -> list[int]:
    """Indices of the k largest, ties to the lower index, sorted by index."""
    return sorted(sorted(range(len(logits)), key=lambda v: (-float(logits[v]), v))[:k])


def vocabulary_loss(
    teacher_logits: Array,
    mask: Mask,
    divergence: Callable[[Array, Array], float],
    how: str = "token_mean",
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    tail: bool = True,
) -> Callable[[Array], float]:
    """student logits (S, T, V) -> aggregate over policy tokens of divergence(log teacher, log student).

    Both logits are divided by `temperature` first. With `top_k` both are cut to the TEACHER's top k plus one tail
    bucket, or renormalised on the support with `tail` False.
    """

    def loss(student_logits: Array) -> float:
        token = np.zeros(mask.shape)
        for i in live_rows(mask):
            for t in row_tokens(mask, i):
                p = log_softmax(teacher_logits[i, t] / temperature)
                q = log_softmax(student_logits[i, t] / temperature)
                if top_k is not None:
                    support = top_support(p, top_k)
                    cut = with_tail if tail else renormalised
                    p, q = cut(p, support), cut(q, support)
                token[i, t] = divergence(p, q)
        return aggregate(token, mask, how)

    return loss


def reverse_kl(log_teacher: Array, log_student: Array) -> float:
    """KL(student || teacher), the on-policy distillation objective per prefix."""
    return kl(log_student, log_teacher)


def vocabulary_gradient(loss: Callable[[Array], float], logits: Array, mask: Mask, step: float = 1e-4) -> Array:
    """d loss / d student logits (S, T, V) by the five-point stencil; 0 outside the mask."""
    gradient = np.zeros(logits.shape)
    for i in live_rows(mask):
        for t in row_tokens(mask, i):
            for v in range(logits.shape[2]):
                values = []
                for shift in (-2, -1, 1, 2):
                    moved = logits.copy()
                    moved[i, t, v] += shift * step
                    values.append(loss(moved))
                gradient[i, t, v] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    return gradient


def reverse_kl_logit_gradient(log_student: Array, log_teacher: Array) -> Array:
    """pi_v ((log pi_v - log teacher_v) - KL): d KL(pi || teacher) / d logits of one position (C)."""
    value = kl(log_student, log_teacher)
    return np.exp(log_student) * (log_student - log_teacher - value)

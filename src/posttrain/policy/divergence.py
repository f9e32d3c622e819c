"""Divergences between two next-token distributions over one vocabulary: what distillation and a full KL anchor cost.

Legend: ``M`` tokens, ``V`` vocabulary, ``P`` teacher (or reference, a constant), ``Q`` student (has gradient).

``beta`` walks from one direction to the other: 0 is the forward ``KL(P || Q)``, 1 the reverse ``KL(Q || P)``, between
them ``JSD_beta = beta KL(P || M) + (1 - beta) KL(Q || M)`` with ``M = beta P + (1 - beta) Q`` (arXiv 2306.13649). JSD
goes to 0 at both ends; like TRL's, the ends here are the plain KLs, so the value jumps there and nothing else does.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

LOGPROB_FLOOR = -1000.0
"""Log-probs are raised to this: a token that one side rules out costs a finite number of nats."""

Support = Literal["teacher", "student"]


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Divergence of each row, (M,), in nats, not negative up to rounding.

    ``student`` and ``teacher`` (M, B) are log-probs over the same ``B`` outcomes that sum to 1 on each side; -inf is
    read as :data:`LOGPROB_FLOOR`. Gradient flows through ``student`` alone. With probabilities ``q`` and
    ``g = log q - log p`` (reverse), ``-p / q`` (forward) or ``(1 - beta)(log q - log m)``, the gradient for the
    student's logits is ``q (g - sum q g)``. Raises ValueError for a ``beta`` outside 0 to 1.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be from 0 (forward KL) to 1 (reverse KL), got {beta}")
    log_q = student.clamp(min=LOGPROB_FLOOR)
    log_p = teacher.detach().clamp(min=LOGPROB_FLOOR)
    if beta == 1.0:
        return (log_q.exp() * (log_q - log_p)).sum(-1)
    if beta == 0.0:
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    from_teacher = (log_p.exp() * (log_p - log_m)).sum(-1)
    from_student = (log_q.exp() * (log_q - log_m)).sum(-1)
    return beta * from_teacher + (1.0 - beta) * from_student


def with_tail(
    student: torch.Tensor, teacher: torch.Tensor, k: int, support: Support
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both distributions over ``k`` tokens and one bucket for all others, each (M, k + 1), log-probs.

    The tokens are the likeliest ``k`` of ``support``, row by row. ``student`` and ``teacher`` (M, V) are log-probs of
    the whole vocabulary. The bucket keeps the mass of the rest, so that mass pushed out of the support is seen;
    renormalising on the support would hide it. With ``k >= V`` both come back as they are.
    """
    if k >= student.shape[-1]:
        return student, teacher
    chosen = (teacher if support == "teacher" else student).detach().topk(k, dim=-1).indices

    def binned(logprobs: torch.Tensor) -> torch.Tensor:
        rest = logprobs.clamp(min=LOGPROB_FLOOR).scatter(-1, chosen, -math.inf).logsumexp(-1, keepdim=True)
        return torch.cat([logprobs.gather(-1, chosen), rest], dim=-1)

    return binned(student), binned(teacher)


def token_divergence(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    beta: float,
    top_k: int = 0,
    support: Support = "teacher",
) -> torch.Tensor:
    """Divergence of two softmaxes, (M,), from logits (M, V) that are divided by their temperatures already.

    ``top_k`` 0: over the whole vocabulary; else over the ``top_k`` likeliest tokens of ``support`` and a tail bucket,
    a lower bound of the same divergence.
    """
    student, teacher = student_logits.log_softmax(-1), teacher_logits.detach().log_softmax(-1)
    if top_k:
        student, teacher = with_tail(student, teacher, top_k, support)
    return divergence(student, teacher, beta)

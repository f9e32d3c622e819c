"""Divergences per token from hidden states of two models, without full logits in memory.

Legend: ``M`` tokens, ``h`` and ``h_t`` hidden sizes of student and teacher, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from posttrain.errors import InputError
from posttrain.policy.divergence import Support, token_divergence


@dataclass(frozen=True, slots=True)
class Divergence:
    """Which divergence: see :func:`posttrain.policy.divergence.token_divergence`."""

    beta: float = 1.0
    top_k: int = 0
    support: Support = "teacher"


@dataclass(frozen=True, slots=True)
class HeadInput:
    """What one model says about the tokens: ``hidden`` (M, h), ``weight`` (V, h), logits are divided by
    ``temperature``."""

    hidden: torch.Tensor
    weight: torch.Tensor
    temperature: float = 1.0

    def logits(self, part: slice) -> torch.Tensor:
        """Logits of some tokens, at least float32, (chunk, V)."""
        raw = self.hidden[part] @ self.weight.t()
        raw = raw if raw.dtype == torch.float64 else raw.float()
        return raw if self.temperature == 1.0 else raw / self.temperature


class _TokenDivergence(torch.autograd.Function):
    """Logits exist for one chunk at a time, in the forward pass and, computed again, in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        temperature: float,
        teacher: HeadInput,
        kind: Divergence,
        chunk_tokens: int,
    ) -> torch.Tensor:
        student = HeadInput(hidden, weight, temperature)
        values = [
            _values(student.logits(part), teacher.logits(part), kind) for part in _chunks(len(hidden), chunk_tokens)
        ]
        ctx.save_for_backward(hidden, weight, teacher.hidden, teacher.weight)
        ctx.temperatures, ctx.kind, ctx.chunk_tokens = (temperature, teacher.temperature), kind, chunk_tokens
        return torch.cat(values) if values else hidden.new_zeros(0).to(_value_dtype(hidden))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, teacher_hidden, teacher_weight = ctx.saved_tensors
        student = HeadInput(hidden, weight, ctx.temperatures[0])
        teacher = HeadInput(teacher_hidden, teacher_weight, ctx.temperatures[1])
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        for part in _chunks(len(hidden), ctx.chunk_tokens):
            logits = student.logits(part).requires_grad_()
            with torch.enable_grad():
                values = _values(logits, teacher.logits(part), ctx.kind)
            (delta,) = torch.autograd.grad(values, logits, grad_outputs[0][part].to(values.dtype))
            delta = (delta / student.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = delta @ weight
            if grad_weight is not None:
                grad_weight += delta.t() @ hidden[part]
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def token_divergences(
    student: HeadInput, teacher: HeadInput, kind: Divergence, chunk_tokens: int = 512
) -> torch.Tensor:
    """Divergence of each token's next-token distributions, (M,), float32 (float64 for float64 inputs), nats.

    Gradient flows through the student's hidden states and head; the teacher is a constant. At most ``chunk_tokens``
    tokens have logits at one time. Raises InputError if the two vocabularies have different sizes.
    """
    mine, theirs = student.weight.shape[0], teacher.weight.shape[0]
    if mine != theirs:
        raise InputError(
            "teacher.path",
            theirs,
            f"its head has {theirs} outcomes and the student's {mine}, so their distributions cannot be compared",
            'Use policy.distillation.kind = "sampled", or a teacher of the same vocabulary.',
        )
    teacher = HeadInput(teacher.hidden.detach(), teacher.weight.detach(), teacher.temperature)
    return _TokenDivergence.apply(student.hidden, student.weight, student.temperature, teacher, kind, chunk_tokens)


def _values(student_logits: torch.Tensor, teacher_logits: torch.Tensor, kind: Divergence) -> torch.Tensor:
    return token_divergence(student_logits, teacher_logits, kind.beta, kind.top_k, kind.support)


def _value_dtype(hidden: torch.Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]

"""Log-probs of given tokens from hidden states, without full logits in memory.

Legend: ``M`` scored tokens, ``h`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """``chunk_tokens`` bounds the logits alive at once (chunk x V); logits of a pass are kept for its backward
    while they fit in ``keep_bytes``, and recomputed beyond."""

    chunk_tokens: int = 512
    keep_bytes: int = 512 << 20


class _TokenLogProbs(torch.autograd.Function):
    """lp_i = z_i[y_i] - logsumexp(z_i), z_i = hidden_i W^T / temperature; entropy beside it without gradient.

    d lp_i / d z_i = onehot(y_i) - softmax(z_i). The gradient of W is accumulated in fp32 over chunks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        settings: HeadSettings,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocabulary = hidden.shape[0], weight.shape[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        normaliser = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropy = torch.full((count,), float("nan"), dtype=torch.float32, device=hidden.device)
        wants_grad = any(ctx.needs_input_grad[:2])
        keep = wants_grad and count * vocabulary * hidden.element_size() <= settings.keep_bytes
        kept: list[torch.Tensor] = []
        for start in range(0, count, settings.chunk_tokens):
            part = slice(start, start + settings.chunk_tokens)
            raw = hidden[part] @ weight.t()
            logits = _tempered(raw, temperature)
            peak = logits.amax(-1, keepdim=True)
            chosen = logits.gather(1, targets[part, None])
            exp = (logits - peak).exp_()
            total = exp.sum(-1, keepdim=True)
            lse = peak + total.log()
            logprobs[part] = (chosen - lse).squeeze(1)
            normaliser[part] = lse.squeeze(1)
            if with_entropy:
                # H = logsumexp(z) - sum_v p_v z_v
                entropy[part] = (lse - (exp.mul_(logits).sum(-1, keepdim=True) / total)).squeeze(1)
            if keep:
                kept.append(raw)
        ctx.save_for_backward(hidden, weight, targets, normaliser, *kept)
        ctx.temperature, ctx.settings = temperature, settings
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normaliser, *kept = ctx.saved_tensors
        grad, temperature, settings = grad_outputs[0], ctx.temperature, ctx.settings
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight: torch.Tensor | None = None
        chunks = range(0, hidden.shape[0], settings.chunk_tokens)
        for number, start in enumerate(chunks):
            part = slice(start, start + settings.chunk_tokens)
            raw = kept[number] if kept else hidden[part] @ weight.t()
            # d loss / d z = g (onehot - softmax(z)) / temperature
            scale = (grad[part] / temperature)[:, None]
            delta = (_tempered(raw, temperature) - normaliser[part, None]).exp_().mul_(-scale)
            delta.scatter_add_(1, targets[part, None], scale.to(delta.dtype))
            delta = delta.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = delta @ weight
            if ctx.needs_input_grad[1]:
                chunk_grad = delta.t() @ hidden[part]
                if len(chunks) == 1:
                    grad_weight = chunk_grad
                elif grad_weight is None:
                    grad_weight = chunk_grad.float()
                else:
                    grad_weight += chunk_grad
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _tempered(raw: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = raw.float()
    return logits if temperature == 1.0 else logits / temperature


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = 1.0,
    settings: HeadSettings | None = None,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of ``targets`` under softmax(hidden W^T / temperature), and the entropy of that distribution.

    ``hidden`` (M, h) and ``weight`` (V, h) of one dtype, ``targets`` int64 (M,). Returns two float32 tensors (M,),
    in nats; the first has gradient, the second is detached (NaN where not asked for).
    """
    settings = settings or HeadSettings()
    if not torch.is_grad_enabled():
        # Inside an autograd function nothing tells scoring from training: without a backward nothing is kept.
        settings = replace(settings, keep_bytes=-1)
    return _TokenLogProbs.apply(hidden, weight, targets, temperature, settings, with_entropy)

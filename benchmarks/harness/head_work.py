"""Hidden states, head and targets of one size, the same on every side, and the time of a loss on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Work:
    """``hidden`` (tokens, width) and ``weight`` (vocabulary, width) bfloat16 with gradient, ``targets`` (tokens,)."""

    hidden: torch.Tensor
    weight: torch.Tensor
    targets: torch.Tensor
    advantages: torch.Tensor

    def measure(self, method: Callable[[Work], tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
        """Log-probs and entropies, a clipped policy loss, and its gradient: seconds, and what must agree."""
        started = time.perf_counter()
        logprobs, entropy = method(self)
        ratio = torch.exp(logprobs - logprobs.detach())
        clipped = ratio.clamp(0.8, 1.2)
        loss = torch.maximum(-self.advantages * ratio, -self.advantages * clipped).sum() / len(self.advantages)
        loss.backward()
        seconds = time.perf_counter() - started
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return {
            "seconds": seconds,
            "tokens": len(self.targets),
            "logprob_mean": float(logprobs.detach().double().mean()),
            "entropy_mean": float(entropy.detach().double().mean()),
            "hidden_grad_norm": float(self.hidden.grad.double().norm()),
            "weight_grad_norm": float(self.weight.grad.float().norm()),
        }


def work_of(spec: dict[str, Any]) -> Work:
    """Random work of ``spec``'s tokens, width and vocabulary from its seed; logits have a standard deviation of 2."""
    generator = torch.Generator().manual_seed(spec["seed"])
    tokens, width, vocabulary = spec["tokens"], spec["width"], spec["vocabulary"]
    weight = torch.randn(vocabulary, width, generator=generator).mul_(2 / width**0.5).bfloat16()
    return Work(
        torch.randn(tokens, width, generator=generator).bfloat16().requires_grad_(),
        weight.requires_grad_(),
        torch.randint(vocabulary, (tokens,), generator=generator),
        torch.randn(tokens, generator=generator),
    )

"""The critic's loss: squared distance to the returns, with PPO's clip around the values before the update."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ValueStatistics:
    """Partial sums over trained tokens, float64 scalars on the critic's device; ``+`` merges micro-batches.

    ``loss`` is this part's share of the step's loss, ``clipped`` counts tokens whose gradient the clip removes.
    """

    loss: torch.Tensor
    clipped: torch.Tensor

    @classmethod
    def empty(cls, device: torch.device) -> ValueStatistics:
        """The neutral element of ``+``."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(zero, zero)

    def __add__(self, other: ValueStatistics) -> ValueStatistics:
        return ValueStatistics(self.loss + other.loss, self.clipped + other.clipped)


@dataclass(frozen=True, slots=True)
class ValueLossResult:
    """``loss``: scalar with gradient, this micro-batch's part of the step's loss (parts add up)."""

    loss: torch.Tensor
    statistics: ValueStatistics


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    tokens: int,
    clip: float | None,
) -> ValueLossResult:
    """``0.5 / tokens * sum max((V - ret)^2, (clip(V, V_old - clip, V_old + clip) - ret)^2)`` over the trained tokens.

    All (M,), flat; ``values`` has gradient. ``tokens`` counts the trained tokens of the whole optimizer step. Without
    ``clip`` the second square is left out. The gradient is exactly 0 where the value has moved further than ``clip``
    *towards* the return; a value that moved away is always pulled back. Masked tokens are removed before anything is
    computed, so NaN there reaches nothing. arXiv 1707.06347's implementation; the factor 0.5 as in verl.
    """
    value, target = values[mask], returns[mask].to(values.dtype)
    error = (value - target).square()
    clipped = torch.zeros_like(error, dtype=torch.bool)
    if clip is not None:
        old = old_values[mask].to(values.dtype)
        near = value.clamp(old - clip, old + clip)
        bounded = (near - target).square()
        clipped = bounded.detach() > error.detach()
        error = torch.where(clipped, bounded, error)
    loss = 0.5 * error.sum() / max(tokens, 1)
    return ValueLossResult(loss, ValueStatistics(loss.detach().double(), clipped.sum().double()))

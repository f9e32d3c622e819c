"""Token data the objective works on.

Legend: ``M`` scored tokens of one micro-batch (flat, no padding), ``S`` sequences and ``G`` groups of
the *whole* optimizer step over all micro-batches and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Flat tokens of one micro-batch. A sequence is never split over micro-batches.

    ``logprobs`` (M,) has gradient; all others are constants. ``old_logprobs`` is the proximal policy,
    ``sampler_logprobs`` the behaviour policy. ``mask`` is false on tokens that are not trained; values
    there may be anything, NaN included, and must not reach loss, gradient or statistics.
    ``anchor_weights`` (M,) replaces the row's one weight where environments have their own;
    ``entropies`` (M,) is of the whole vocabulary, in nats, for the statistics alone. ``extra_losses`` (M,) is added to
    the token losses as it is, with its gradient: divergences from another model's whole distributions.
    ``covariance_chosen`` bool (M,) marks tokens chosen by covariance over the optimizer step.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    sequence_index: torch.Tensor
    sampler_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    anchor_weights: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    extra_losses: torch.Tensor | None = None
    covariance_chosen: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Global denominators of one optimizer step, computed once from all its data before any backward.

    ``tokens_per_sequence`` int64 (S,) trained tokens of each sequence; ``group_of_sequence`` int64 (S,);
    ``tokens_per_group`` int64 (G,). Sequences with no trained token count nowhere. ``correction_mean`` is the mean
    correction weight over the step's trained tokens, where weights are normalised; ``kl_weight`` the KL penalty's
    present weight, where it adapts.
    """

    tokens: int
    sequences: int
    groups: int
    tokens_per_sequence: torch.Tensor
    group_of_sequence: torch.Tensor
    tokens_per_group: torch.Tensor
    correction_mean: float | None = None
    kl_weight: float | None = None

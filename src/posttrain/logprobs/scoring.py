"""Scoring: log-probs of given tokens under a model, with or without gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from posttrain.errors import NonFiniteError
from posttrain.model.forward import DeviceBatch, output_weight, target_hidden, to_device
from posttrain.model.head import HeadSettings, token_logprobs
from posttrain.model.packing import Block


@dataclass(frozen=True, slots=True)
class Scores:
    """``logprobs`` (M,) has gradient if the model's weights do; ``entropy`` (M,) is detached. Both float32, nats.

    ``hidden`` (M, h) are the hidden states that predict the targets, ``weight`` (V, h) the head.
    """

    batch: DeviceBatch
    logprobs: torch.Tensor
    entropy: torch.Tensor
    hidden: torch.Tensor
    weight: torch.Tensor


def score_blocks(
    model: nn.Module, blocks: list[Block], temperature: float, head: HeadSettings, with_entropy: bool = True
) -> Scores:
    """Score the targets of one micro-batch. Raises NonFiniteError naming the first token without a finite log-prob."""
    weight = output_weight(model)
    batch = to_device(blocks, weight.device)
    hidden = target_hidden(model, batch)
    logprobs, entropy = token_logprobs(hidden, weight, batch.target_ids, temperature, head, with_entropy)
    finite = torch.isfinite(logprobs.detach())
    if not bool(finite.all()):
        bad, packed = int(torch.nonzero(~finite)[0]), batch.packed
        raise NonFiniteError(
            f"the log-prob of token {packed.target_ids[bad]} at position {packed.target_offset[bad]} "
            f"of row {packed.target_sequence[bad]} is not finite"
        )
    return Scores(batch, logprobs, entropy, hidden, weight)

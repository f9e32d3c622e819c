"""Values from hidden states: a float32 head of one output, on the policy's backbone or on a copy of it.

Legend: ``M`` targets and ``B`` sequences of one micro-batch, ``h`` hidden size.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from posttrain.model.forward import base_model


class ValueHead(nn.Module):
    """``V = w . hidden + b`` in float32, whatever the backbone computes in. Starts as 0 everywhere: no baseline."""

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values float32 (M,) of ``hidden`` (M, h) of any floating type."""
        return self.linear(hidden.float()).squeeze(-1)

    def frozen(self, hidden: torch.Tensor) -> torch.Tensor:
        """As ``forward``, with gradient through ``hidden`` alone."""
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        return nn.functional.linear(hidden.float(), weight, bias).squeeze(-1)


def copy_backbone(model: nn.Module) -> nn.Module:
    """A copy of a causal LM's weights without its language-model head, so that neither its memory nor its optimizer
    state is paid for. What is trained stays so: with adapters the copy has adapters of its own."""
    head = base_model(model).get_output_embeddings()
    return copy.deepcopy(model, {id(head): nn.Identity()})

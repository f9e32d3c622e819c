"""Nothing but the matrix products of decoding, with weights stored as the GEMM wants them: a bound, not an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from harness.worker import Action, serve
from posttrain.model.load import load_policy
from posttrain.model.runtime import set_threads, tune_allocator
from posttrain.rollout.native.replica import PackedLinear, can_pack

PREFILL_ROWS = 2048


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """Every linear layer of the model, the head among them."""
    tune_allocator()
    set_threads(spec["threads"])
    model: Any = load_policy(spec["model"], torch.bfloat16).model
    head: Any = model.get_output_embeddings()
    packs = can_pack(torch.bfloat16, torch.device("cpu"))
    layers = [
        (_linear(module, packs), module.in_features)
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    last = _linear(head, packs)

    @torch.inference_mode()
    def step(inputs: dict[int, torch.Tensor]) -> None:
        for layer, width in layers:
            layer(inputs[width])

    def inputs_of(rows: int) -> dict[int, torch.Tensor]:
        return {width: torch.randn(rows, width).bfloat16() for width in {w for _, w in layers} | {head.in_features}}

    @torch.inference_mode()
    def decode(command: dict[str, Any]) -> dict[str, Any]:
        inputs = inputs_of(command["rows"])
        for _ in range(command["steps"]):
            step(inputs)
            last(inputs[head.in_features])
        return {"tokens": command["rows"] * command["steps"]}

    @torch.inference_mode()
    def prefill(command: dict[str, Any]) -> dict[str, Any]:
        left = command["prompt_tokens"]
        while left > 0:
            step(inputs_of(min(left, PREFILL_ROWS)))
            left -= PREFILL_ROWS
        return {"tokens": command["prompt_tokens"]}

    return {"decode": decode, "prefill": prefill}


def _linear(module: nn.Linear, packs: bool) -> nn.Module:
    return PackedLinear(module.weight, module.bias) if packs else _Plain(module.weight)


class _Plain(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.linear(inputs, self.weight)


if __name__ == "__main__":
    serve(load)

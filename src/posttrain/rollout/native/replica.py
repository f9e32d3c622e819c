"""The engine's own copy of the weights, laid out for decoding.

The trainer keeps fp32 masters; the engine holds one copy in the compute dtype per policy version. On a CPU the
linear layers of that copy are stored in the layout the GEMM wants, so that no call re-packs them; results are
bitwise those of ``torch.nn.functional.linear``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from posttrain.model.forward import base_model
from posttrain.model.weights import WeightMismatchError, WeightSet, verify


class PackedLinear(nn.Module):
    """A linear layer whose bf16 weight is stored re-ordered for oneDNN. Inference only."""

    packed: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        self.pack(weight)

    def pack(self, weight: torch.Tensor) -> None:
        """Take a new weight (out, in) in place of the old one."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 128)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """True where oneDNN's packed bf16 linear exists and gives the bits of the plain one."""
    if device.type != "cpu" or dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    probe = torch.linspace(-1, 1, 64 * 96).view(96, 64).bfloat16()
    inputs = torch.linspace(1, -1, 5 * 64).view(5, 64).bfloat16()
    try:
        return torch.equal(PackedLinear(probe, None)(inputs), F.linear(inputs, probe))
    except (AttributeError, RuntimeError):
        return False


class Replica:
    """A decoding copy of a model. ``load`` replaces its weights; ``version`` says which policy it holds."""

    def __init__(self, source: nn.Module, dtype: torch.dtype) -> None:
        """Copies ``source`` (a transformers causal LM, without adapter) cast to ``dtype``; weights come by ``load``."""
        causal = base_model(source)
        self.model: nn.Module = copy.deepcopy(causal).to(dtype).eval()
        self.model.requires_grad_(False)
        self.device = next(self.model.parameters()).device
        self.dtype = dtype
        self.version = -1
        self._packed: dict[str, PackedLinear] = {}
        self._shapes = {name: p.shape for name, p in self.model.named_parameters()}
        head: Any = causal.get_output_embeddings()
        tied = head.weight is causal.get_input_embeddings().weight
        head_name = next(name for name, module in causal.named_modules() if module is head)
        self._head_source = _embedding_name(causal) if tied else f"{head_name}.weight"
        self._head: PackedLinear | None = None
        if can_pack(dtype, self.device):
            self._pack_linears(skip=head_name)
            self._head = PackedLinear(self.output_weight(), None)

    def output_weight(self) -> torch.Tensor:
        """Weight of the head, (V, h), in the plain layout."""
        return self.model.get_output_embeddings().weight  # pyright: ignore

    def _pack_linears(self, skip: str) -> None:
        for name, module in list(self.model.named_modules()):
            if isinstance(module, nn.Linear) and name != skip:
                packed = PackedLinear(module.weight, module.bias)
                parent, _, leaf = name.rpartition(".")
                setattr(self.model.get_submodule(parent), leaf, packed)
                self._packed[f"{name}.weight"] = packed

    @torch.no_grad()
    def load(self, weights: WeightSet) -> int:
        """Take the tensors of a version. They are verified against the manifest before any is used.

        Raises WeightMismatchError if a tensor is missing, unknown or not bit for bit the one described.
        """
        verify(weights.tensors, weights)
        parameters = dict(self.model.named_parameters())
        expected = set(parameters) | set(self._packed)
        expected.discard("lm_head.weight" if self._head_source != "lm_head.weight" else "")
        unknown = set(weights.tensors) - expected - {self._head_source}
        missing = expected - set(weights.tensors)
        if unknown or missing:
            raise WeightMismatchError(
                f"version {weights.version}: tensors do not fit the engine's model: "
                f"{len(missing)} missing {sorted(missing)[:2]}, {len(unknown)} unknown {sorted(unknown)[:2]}"
            )
        for name, tensor in weights.tensors.items():
            if tensor.shape != self._shapes[name]:
                raise WeightMismatchError(
                    f"version {weights.version}: {name} has shape {tuple(tensor.shape)}, "
                    f"the engine's model has {tuple(self._shapes[name])}"
                )
        for name, tensor in weights.tensors.items():
            if name in self._packed:
                self._packed[name].pack(tensor.to(self.device, self.dtype))
            else:
                parameters[name].copy_(tensor)
        if self._head is not None:
            self._head.pack(self.output_weight())
        self.version = weights.version
        return self.version

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, h) -> (B, V) in the compute dtype."""
        return self._head(hidden) if self._head is not None else F.linear(hidden, self.output_weight())

    @property
    def nbytes(self) -> int:
        """Bytes the copy holds."""
        tensors = list(self.model.parameters()) + [p.packed for p in self._packed.values()]
        if self._head is not None:
            tensors.append(self._head.packed)
        return sum(t.numel() * t.element_size() for t in tensors)


def _embedding_name(causal: Any) -> str:
    embedding = causal.get_input_embeddings()
    return next(f"{name}.weight" for name, module in causal.named_modules() if module is embedding)

"""Plain numbers about machine and model; whoever can probe them fills these in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU. ``memory_bytes`` is what is free."""

    name: str
    memory_bytes: int
    bfloat16: bool


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this process may use, probed before a model is loaded.

    ``cores`` by affinity, ``memory_bytes`` free within any container limit, ``cpu_bfloat16`` true where the
    processor multiplies bfloat16 natively.
    """

    cores: int
    memory_bytes: int
    cpu_bfloat16: bool
    cuda: tuple[CudaDevice, ...] = ()
    processor: str = ""


class ModelSizes(Protocol):
    """Sizes of a decoder; what loading a model returns has them. ``parameters`` counts a tied head once."""

    @property
    def parameters(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def experts(self) -> int: ...


def kv_bytes_per_token(model: ModelSizes, element_bytes: int) -> int:
    """Bytes of keys and values of one token over all layers."""
    return 2 * model.layers * model.kv_heads * model.head_dim * element_bytes


def feed_forward_width(model: ModelSizes) -> int:
    """Width of a dense gated block's inner layer, from the parameter count; four times the hidden size with experts."""
    if model.experts:
        return 4 * model.hidden
    block = (model.parameters - model.vocabulary * model.hidden) / model.layers
    attention = 2 * model.hidden * model.head_dim * (model.heads + model.kv_heads)
    return max(model.hidden, int((block - attention) / (3 * model.hidden)))


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one element of each type a setting can name."""

"""Plain numbers about machine and model; whoever can probe them fills these in."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a decoder. ``trainable_parameters`` is less than ``parameters`` with LoRA."""

    parameters: int
    trainable_parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    context_length: int
    kv_heads: int
    head_dim: int
    experts: int = 0

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one element of each type a setting can name."""

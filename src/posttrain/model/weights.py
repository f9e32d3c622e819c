"""A set of weights of one policy version, with a manifest that says what was really received."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.errors import PosttrainError


class WeightMismatchError(PosttrainError):
    """Weights that are not the ones that were sent: a missing tensor, another shape, another checksum."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What one tensor must look like. ``checksum`` depends on every bit and on its place."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


@dataclass(frozen=True, slots=True)
class WeightSet:
    """Tensors by parameter name, of one policy version. The tensors may alias the trainer's until the next step."""

    version: int
    tensors: Mapping[str, torch.Tensor]
    manifest: Mapping[str, TensorRecord]

    @classmethod
    def of(cls, version: int, tensors: Mapping[str, torch.Tensor]) -> WeightSet:
        """Describe tensors and checksum them."""
        return cls(version, tensors, {name: describe(tensor) for name, tensor in tensors.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def describe(tensor: torch.Tensor) -> TensorRecord:
    """Shape, dtype and checksum of a tensor."""
    return TensorRecord(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), checksum(tensor))


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> int:
    """CRC-32 of the tensor's bytes in row-major order: a moved, swapped or changed value is noticed."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    content: Any = flat.view(torch.uint8).numpy()
    return zlib.crc32(content)


def verify(received: Mapping[str, torch.Tensor], sent: WeightSet) -> None:
    """Raise WeightMismatchError unless ``received`` holds exactly the tensors of ``sent``, bit for bit."""
    missing = sorted(set(sent.manifest) - set(received))
    if missing:
        raise WeightMismatchError(f"version {sent.version}: {len(missing)} tensors missing, first {missing[0]}")
    for name, record in sent.manifest.items():
        found = describe(received[name])
        if found != record:
            raise WeightMismatchError(f"version {sent.version}: {name} is {found}, sent was {record}")

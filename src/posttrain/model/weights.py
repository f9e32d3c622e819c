"""A set of weights of one policy version, with a manifest that says what was really received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> int:
    """64-bit sum of the tensor's bit patterns weighted by row and by column, so that moved values are noticed."""
    words = tensor.detach().contiguous().view(_WORDS[tensor.element_size()])
    matrix = words.reshape(-1, words.shape[-1]) if words.ndim > 1 else words.reshape(1, -1)
    by_row, by_column = matrix.sum(1, dtype=torch.int64), matrix.sum(0, dtype=torch.int64)
    rows = (by_row * torch.arange(1, len(by_row) + 1, device=matrix.device)).sum()
    columns = (by_column * torch.arange(7, len(by_column) + 7, device=matrix.device)).sum()
    return (int(rows) * 1_000_003 + int(columns)) & 0xFFFF_FFFF_FFFF_FFFF


def verify(received: Mapping[str, torch.Tensor], sent: WeightSet) -> None:
    """Raise WeightMismatchError unless ``received`` holds exactly the tensors of ``sent``, bit for bit."""
    missing = sorted(set(sent.manifest) - set(received))
    if missing:
        raise WeightMismatchError(f"version {sent.version}: {len(missing)} tensors missing, first {missing[0]}")
    for name, record in sent.manifest.items():
        found = describe(received[name])
        if found != record:
            raise WeightMismatchError(f"version {sent.version}: {name} is {found}, sent was {record}")

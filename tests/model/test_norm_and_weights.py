"""Fused norms compute what they replace; weights arrive bit for bit or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from posttrain.model.norm import FusedNorm, fuse_norms
from posttrain.model.tiny import build_tiny
from posttrain.model.weights import WeightMismatchError, WeightSet, checksum, verify


@pytest.mark.parametrize(("kind", "norms"), [("llama", 5), ("qwen3", 9), ("gemma3", 0), ("qwen3_moe", 9)])
def test_norms_that_compute_an_rms_norm_are_replaced_and_no_others(kind: str, norms: int) -> None:
    """Gemma multiplies by 1 + weight: replacing it by weight alone would be another model."""
    model: Any = build_tiny(kind)[0]
    ids = torch.randint(0, 100, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        before = model(input_ids=ids).logits
    names = [name for name, _ in model.named_parameters()]
    weights = {name: id(p) for name, p in model.named_parameters()}
    assert fuse_norms(model) == norms
    assert fuse_norms(model) == 0
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, before, rtol=1e-4, atol=1e-5)
    assert [name for name, _ in model.named_parameters()] == names
    assert {name: id(p) for name, p in model.named_parameters()} == weights


class Centred(nn.Module):
    """A norm with the attributes of an RMS norm that subtracts the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(inputs, (8,), self.weight, None, self.eps)


def test_a_norm_of_another_kind_stays() -> None:
    assert fuse_norms(nn.Sequential(Centred(), nn.LayerNorm(8))) == 0


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    norm = FusedNorm(nn.Parameter(torch.linspace(0.5, 2, 64)), 1e-6)
    rows = torch.randn(33, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    together = norm(rows)
    assert all(torch.equal(norm(rows[i : i + 1])[0], together[i]) for i in range(33))


def swap_rows(t: torch.Tensor) -> torch.Tensor:
    return t[torch.tensor([1, 0, *range(2, t.shape[0])])]


def swap_two_by_two(t: torch.Tensor) -> torch.Tensor:
    """A change that leaves the sum of every row and of every column as it was."""
    changed = t.clone()
    changed[0, 0] += 1
    changed[0, 1] -= 1
    changed[1, 0] -= 1
    changed[1, 1] += 1
    return changed


def flip_a_sign_bit(t: torch.Tensor) -> torch.Tensor:
    changed = t.clone()
    changed[-1, -1] = -0.0
    return changed


CHANGES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    swap_rows,
    swap_two_by_two,
    flip_a_sign_bit,
    lambda t: t.flip(0),
    lambda t: t.flip(1),
    lambda t: t.t().contiguous(),
    lambda t: t.roll(1).contiguous(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES)
def test_the_checksum_notices_moved_and_changed_values(
    change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    tensor = torch.arange(36).view(6, 6).to(dtype)
    tensor[-1, -1] = 0.0
    changed = change(tensor)
    assert not torch.equal(changed.view(torch.uint8), tensor.view(torch.uint8))
    assert checksum(changed) != checksum(tensor)


def test_the_checksum_is_of_values_in_order_not_of_memory() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous())
    assert checksum(torch.tensor(3.0)) == checksum(torch.tensor([3.0]))
    assert checksum(nn.Parameter(tensor)) == checksum(tensor)


def test_every_single_bit_counts() -> None:
    tensor = torch.zeros(64, dtype=torch.int8)
    seen = {checksum(tensor)}
    for place in range(64):
        for bit in range(7):
            other = tensor.clone()
            other[place] = 1 << bit
            seen.add(checksum(other))
    assert len(seen) == 1 + 64 * 7


def test_verify_names_what_is_wrong() -> None:
    tensors = {"a": torch.ones(2, 3), "b": torch.zeros(4)}
    sent = WeightSet.of(7, tensors)
    verify(tensors, sent)
    assert sent.nbytes == 40
    for received, message in (
        ({"a": tensors["a"]}, "1 tensors missing, first b"),
        (tensors | {"a": torch.ones(3, 2)}, "version 7: a is"),
        (tensors | {"b": torch.zeros(4).bfloat16()}, "version 7: b is"),
        (tensors | {"b": torch.tensor([0.0, 0.0, 0.0, 1e-30])}, "version 7: b is"),
    ):
        with pytest.raises(WeightMismatchError, match=message):
            verify(received, sent)

"""The chunked divergence: equal to the plain one, and never more than a chunk of logits."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from posttrain.errors import InputError
from posttrain.policy import divergence_head
from posttrain.policy.divergence import token_divergence
from posttrain.policy.divergence_head import Divergence, HeadInput, token_divergences

ROWS, WIDTH, TEACHER_WIDTH, VOCABULARY = 23, 16, 12, 57
KINDS = [Divergence(1.0), Divergence(0.0), Divergence(0.5), Divergence(1.0, 5), Divergence(0.3, 4, "student")]


def inputs(dtype: torch.dtype = torch.float64) -> tuple[HeadInput, HeadInput, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    student = HeadInput(matrix(ROWS, WIDTH).requires_grad_(), matrix(VOCABULARY, WIDTH).requires_grad_(), 0.8)
    teacher = HeadInput(matrix(ROWS, TEACHER_WIDTH), matrix(VOCABULARY, TEACHER_WIDTH), 1.3)
    return student, teacher, torch.randn(ROWS, generator=generator, dtype=torch.float64)


def naive(student: HeadInput, teacher: HeadInput, kind: Divergence) -> torch.Tensor:
    logits = [side.hidden @ side.weight.t() / side.temperature for side in (student, teacher)]
    return token_divergence(*logits, kind.beta, kind.top_k, kind.support)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])
def test_chunked_equals_plain(kind: Divergence, chunk: int, dtype: torch.dtype, tolerance: float) -> None:
    student, teacher, upstream = inputs(dtype)
    values = token_divergences(student, teacher, kind, chunk)
    (values * upstream.to(values.dtype)).sum().backward()
    exact_student, exact_teacher, _ = inputs()
    expected = naive(exact_student, exact_teacher, kind)
    (expected * upstream).sum().backward()
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=tolerance * float(expected.max()))
    for ours, theirs in ((student.hidden, exact_student.hidden), (student.weight, exact_student.weight)):
        assert ours.grad is not None
        assert theirs.grad is not None
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=tolerance * scale)


def test_bfloat16_heads_give_float32_values_and_gradients_of_their_own_type() -> None:
    student, teacher, upstream = inputs(torch.bfloat16)
    values = token_divergences(student, teacher, KINDS[0], 7)
    assert values.dtype == torch.float32
    (values * upstream).sum().backward()
    assert student.weight.grad is not None
    assert student.weight.grad.dtype == torch.bfloat16
    exact_student, exact_teacher, _ = inputs()
    (naive(exact_student, exact_teacher, KINDS[0]) * upstream).sum().backward()
    exact = exact_student.weight.grad
    assert exact is not None
    assert float((student.weight.grad.double() - exact).norm() / exact.norm()) < 0.05


def test_no_more_than_a_chunk_of_logits_is_alive_and_none_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher, _ = inputs(torch.float32)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    plain = HeadInput.logits

    def watched(self: HeadInput, part: slice) -> torch.Tensor:
        nonlocal most
        made = plain(self, part)
        alive.append(weakref.ref(made))
        most = max(most, sum(z().numel() for z in alive if z() is not None))  # pyright: ignore[reportOptionalMemberAccess]
        return made

    saved = 0

    def count(tensor: torch.Tensor) -> Any:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    monkeypatch.setattr(divergence_head.HeadInput, "logits", watched)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        values = token_divergences(student, teacher, KINDS[0], 4)
    assert saved == sum(t.numel() for t in (student.hidden, student.weight, teacher.hidden, teacher.weight))
    values.sum().backward()
    assert len(alive) == 2 * 2 * 6
    # Student and teacher of one chunk; the last student's may live until the next is made.
    assert most <= 3 * 4 * VOCABULARY < ROWS * VOCABULARY


def test_vocabularies_of_different_size_are_refused() -> None:
    student, teacher, _ = inputs()
    short = HeadInput(teacher.hidden, teacher.weight[:50])
    with pytest.raises(InputError, match=r"50 outcomes and the student's 57"):
        token_divergences(student, short, KINDS[0])


def test_no_tokens_are_fine() -> None:
    student, teacher, _ = inputs()
    empty = [HeadInput(side.hidden[:0], side.weight) for side in (student, teacher)]
    assert token_divergences(*empty, KINDS[0]).shape == (0,)

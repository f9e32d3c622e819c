"""Divergences of two distributions: values and gradients by definition, at the ends, and with a tail bucket."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.policy.divergence import divergence, token_divergence, with_tail

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]
EXACT = {"rtol": 0, "atol": 1e-12}


def logits(rows: int = 5, vocabulary: int = 7, seed: int = 0, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = [spread * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) for _ in range(2)]
    return both[0].requires_grad_(), both[1]


def by_definition(q: np.ndarray, p: np.ndarray, beta: float) -> float:
    """The sums as they stand in the paper, one row."""

    def kl(a: np.ndarray, b: np.ndarray) -> float:
        return float(sum(x * np.log(x / y) for x, y in zip(a, b, strict=True) if x > 0))

    if beta == 0.0:
        return kl(p, q)
    if beta == 1.0:
        return kl(q, p)
    mixture = beta * p + (1 - beta) * q
    return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)


@pytest.mark.parametrize("beta", BETAS)
def test_values_are_those_of_the_definition(beta: float) -> None:
    student, teacher = logits()
    got = token_divergence(student, teacher, beta)
    q, p = student.detach().softmax(-1).numpy(), teacher.softmax(-1).numpy()
    expected = [by_definition(a, b, beta) for a, b in zip(q, p, strict=True)]
    np.testing.assert_allclose(got.detach(), expected, **EXACT)


@pytest.mark.parametrize("beta", BETAS)
def test_gradient_is_the_closed_form_and_the_finite_difference(beta: float) -> None:
    student, teacher = logits()
    (got,) = torch.autograd.grad(token_divergence(student, teacher, beta).sum(), student)
    q, p = student.detach().softmax(-1), teacher.softmax(-1)
    m = beta * p + (1 - beta) * q
    g = -p / q if beta == 0.0 else (1.0 if beta == 1.0 else 1 - beta) * (q / (p if beta == 1.0 else m)).log()
    torch.testing.assert_close(got, q * (g - (q * g).sum(-1, keepdim=True)), **EXACT)
    step = 1e-6
    for place in [(0, 0), (2, 3), (4, 6)]:
        moved = [student.detach().clone() for _ in range(2)]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (float(token_divergence(z, teacher, beta).sum()) for z in moved)
        assert float(got[place]) == pytest.approx((up - down) / (2 * step), abs=1e-8)


def test_golden_enumeration(golden):
    exact = golden("kl_estimators").expected["exact_vocab4"]
    student = torch.tensor([exact["logits"]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([exact["ref_probs"]], dtype=torch.float64).log()
    reverse = token_divergence(student, reference, 1.0)
    assert reverse.item() == pytest.approx(exact["reverse_kl"], abs=1e-12)
    assert token_divergence(student, reference, 0.0).item() == pytest.approx(exact["forward_kl"], abs=1e-12)
    (gradient,) = torch.autograd.grad(reverse.sum(), student)
    np.testing.assert_allclose(gradient[0], exact["grad_reverse_kl"], **EXACT)


@given(st.integers(0, 10**6), st.sampled_from(BETAS), st.integers(1, 9), st.sampled_from(["teacher", "student"]))
def test_a_tail_bucket_never_adds_and_equal_distributions_cost_nothing(
    seed: int, beta: float, k: int, support: str
) -> None:
    student, teacher = logits(3, 8, seed, 3.0)
    full = token_divergence(student, teacher, beta).detach()
    coarse = token_divergence(student, teacher, beta, k, support).detach()  # pyright: ignore[reportArgumentType]
    assert (coarse <= full + 1e-12).all()
    assert (coarse >= -1e-12).all()
    if k >= 8:
        assert torch.equal(coarse, full)
    same = token_divergence(student, student.detach(), beta, k, support)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(same.detach(), torch.zeros(3, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("support", ["teacher", "student"])
def test_the_tail_holds_the_mass_of_the_rest(support: str) -> None:
    student, teacher = (z.log_softmax(-1).detach() for z in logits())
    q, p = with_tail(student, teacher, 3, support)  # pyright: ignore[reportArgumentType]
    assert q.shape == p.shape == (5, 4)
    for binned, whole in ((q, student), (p, teacher)):
        torch.testing.assert_close(binned.exp().sum(-1), torch.ones(5, dtype=torch.float64), **EXACT)
        chooser = teacher if support == "teacher" else student
        kept = np.sort(chooser.numpy().argsort(-1)[:, -3:])
        rest = [sum(float(whole[row, v].exp()) for v in range(7) if v not in kept[row]) for row in range(5)]
        np.testing.assert_allclose(binned[:, -1].exp(), rest, **EXACT)


def test_mass_pushed_out_of_the_support_is_felt() -> None:
    """Renormalised on the teacher's two tokens both distributions are equal; with a tail bucket they are not."""
    teacher = torch.tensor([[4.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
    student = torch.tensor([[0.0, 0.0, 5.0, 0.0]], dtype=torch.float64, requires_grad=True)
    value = token_divergence(student, teacher, 1.0, top_k=2)
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert float(value) > 1.0
    assert gradient[0, 2] > 0 > gradient[0, 0]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_inputs_are_finite(beta: float, dtype: torch.dtype) -> None:
    infinity = float("inf")
    teacher = torch.tensor([[0.0, -infinity, -infinity], [200.0, 0.0, -200.0], [0.0, 0.0, 0.0]], dtype=dtype)
    student = torch.tensor([[-50.0, 60.0, 0.0], [-200.0, 0.0, 200.0], [1e4, 0.0, -infinity]], dtype=dtype)
    for k in (0, 1, 2):
        student = student.detach().requires_grad_()
        values = token_divergence(student, teacher, beta, k)
        (gradient,) = torch.autograd.grad(values.sum(), student)
        assert values.isfinite().all()
        assert gradient.isfinite().all()
        assert (values >= 0).all()


def test_the_teacher_gets_no_gradient_and_beta_has_bounds() -> None:
    student, teacher = logits()
    teacher.requires_grad_()
    token_divergence(student, teacher, 0.5, 3).sum().backward()
    assert teacher.grad is None
    with pytest.raises(ValueError, match="beta"):
        divergence(student, teacher, 1.5)

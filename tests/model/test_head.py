"""The head: log-probs, entropy and gradients of a softmax over the vocabulary, without full logits."""

from __future__ import annotations

import weakref

import pytest
import torch

from posttrain.model import head
from posttrain.model.head import HeadSettings, token_logprobs

ROWS, WIDTH, VOCABULARY = 23, 16, 57


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    upstream = torch.randn(ROWS, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets, upstream


def naive(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = (hidden @ weight.t() / temperature).log_softmax(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_chunked_equals_naive(temperature: float, chunk: int) -> None:
    hidden, weight, targets, upstream = inputs(torch.float32)
    values, entropy = token_logprobs(hidden, weight, targets, temperature, HeadSettings(chunk))
    (values * upstream).sum().backward()
    exact_hidden, exact_weight, _, _ = inputs()
    expected, expected_entropy = naive(exact_hidden, exact_weight, targets, temperature)
    (expected * upstream).sum().backward()
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy.double(), expected_entropy.detach(), rtol=0, atol=2e-5)
    assert not entropy.requires_grad
    for ours, theirs in ((hidden, exact_hidden), (weight, exact_weight)):
        assert ours.grad is not None
        assert theirs.grad is not None
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeping_logits_and_computing_them_again_give_the_same_bits(dtype: torch.dtype) -> None:
    results: list[tuple[torch.Tensor, ...]] = []
    for keep in (0, 1 << 30):
        hidden, weight, targets, upstream = inputs(dtype)
        values, entropy = token_logprobs(hidden, weight, targets, 0.9, HeadSettings(6, keep))
        (values * upstream).sum().backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        results.append((values.detach(), entropy, hidden.grad, weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_kept_logits_are_bounded_and_not_kept_without_gradient() -> None:
    def saved_bytes(keep: int, wants_grad: bool) -> int:
        hidden, weight, targets, _ = inputs(torch.float32)
        total = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t), torch.set_grad_enabled(wants_grad):
            token_logprobs(hidden, weight, targets, 1.0, HeadSettings(8, keep))
        return total

    logits = ROWS * VOCABULARY * 4
    assert saved_bytes(logits, True) - saved_bytes(logits - 1, True) == logits
    assert saved_bytes(1 << 30, False) == 0


def test_scoring_never_holds_more_than_a_chunk_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets, _ = inputs(torch.float32)
    chunks: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    plain = head._tempered

    def watched(raw: torch.Tensor, temperature: float) -> torch.Tensor:
        chunks.append(weakref.ref(raw))
        alive.append(sum(chunk() is not None for chunk in chunks))
        return plain(raw, temperature)

    monkeypatch.setattr(head, "_tempered", watched)
    with torch.no_grad():
        token_logprobs(hidden, weight, targets, 0.5, HeadSettings(4))
    assert len(alive) == 6
    assert max(alive) <= 2


def test_known_distribution_at_half_temperature() -> None:
    """Logits 2, 1, 0 at temperature 0.5: -0.143, -2.143, -4.143, not the raw log-probs divided by 0.5."""
    hidden, weight = torch.ones(3, 1), torch.tensor([[2.0], [1.0], [0.0]])
    values, _ = token_logprobs(hidden, weight, torch.arange(3), 0.5)
    torch.testing.assert_close(values, torch.tensor([-0.1429, -2.1429, -4.1429]), rtol=0, atol=1e-4)
    assert values.exp().sum() == pytest.approx(1.0)


def test_entropy_only_where_asked_and_sane_at_the_ends() -> None:
    hidden, weight, targets, _ = inputs(torch.float32)
    assert token_logprobs(hidden, weight, targets, with_entropy=False)[1].isnan().all()
    uniform = token_logprobs(torch.zeros(1, 4), torch.ones(50, 4), torch.tensor([3]))
    torch.testing.assert_close(uniform[1], torch.tensor([50.0]).log())
    sharp = token_logprobs(torch.tensor([[1.0]]), torch.tensor([[1e4], [0.0], [-1e4]]), torch.tensor([1]))
    assert float(sharp[1]) == 0.0
    assert float(sharp[0].detach()) == -1e4


def test_no_rows_are_fine() -> None:
    hidden, weight, targets, _ = inputs(torch.float32)
    values, entropy = token_logprobs(hidden[:0], weight, targets[:0])
    assert values.shape == entropy.shape == (0,)

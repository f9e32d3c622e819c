"""The sampler: random streams that are pure functions, and draws from exactly the given distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rollout.native.sampler import NonFiniteLogitsError, Sampler, uniform

VOCABULARY = 700


def draws(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return uniform(seeds.astype(np.uint64), positions.astype(np.uint64))


def test_uniform_is_uniform_along_a_stream_and_across_streams() -> None:
    count = 20_000
    zeros, steps = np.zeros(count), np.arange(count)
    for values in (draws(zeros, steps), draws(steps, zeros), draws(steps * 2**40, zeros)):
        assert (values >= 0).all()
        assert (values < 1).all()
        counts = np.bincount((values * 50).astype(int), minlength=50)
        assert ((counts - count / 50) ** 2 / (count / 50)).sum() < 110
        assert len(set(values.tolist())) == count
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**20)), min_size=2, max_size=20))
def test_uniform_depends_on_its_own_seed_and_position_alone(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = np.array([p[0] for p in pairs], np.uint64), np.array([p[1] for p in pairs], np.uint64)
    together = uniform(seeds, positions)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(len(pairs))]
    assert together.tolist() == alone


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    grid = np.array([draws(np.full(400, s), np.arange(400)) for s in range(60)])
    correlation = np.corrcoef(grid)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 0.26
    assert not np.allclose(grid[0, 1:], grid[1, :-1])


def sample(logits: torch.Tensor, temperature: float, seeds: np.ndarray, position: int = 0) -> tuple:
    rows = len(seeds)
    sampler = Sampler(logits.shape[-1], torch.device("cpu"))
    drawn = sampler.sample(
        logits.expand(rows, -1),
        np.full(rows, temperature, np.float32),
        seeds.astype(np.uint64),
        np.full(rows, position, np.uint64),
    )
    return drawn.token_ids, drawn.logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    """Chi-square over a vocabulary of three chunks, the last one not full."""
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)) * 1.5
    tokens, logprobs = sample(logits, temperature, np.arange(30_000))
    exact = (logits.double() / temperature).log_softmax(-1)
    np.testing.assert_allclose(logprobs, exact[torch.from_numpy(tokens)], atol=2e-6)
    expected = 30_000 * exact.exp().numpy()
    counts = np.bincount(tokens, minlength=VOCABULARY)
    order = np.argsort(expected)
    bins = np.cumsum(expected[order]) // 150
    wanted, seen = np.bincount(bins.astype(int), expected[order]), np.bincount(bins.astype(int), counts[order])
    kept = wanted > 20
    freedom = int(kept.sum()) - 1
    statistic = float((((seen - wanted) ** 2 / np.maximum(wanted, 1))[kept]).sum())
    assert statistic < freedom + 4.5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("place", [0, 255, 256, 511, 512, 699])
def test_a_certain_token_is_always_drawn_wherever_it_stands(place: int) -> None:
    logits = torch.full((VOCABULARY,), -1e4)
    logits[place] = 0.0
    tokens, logprobs = sample(logits, 1.0, np.arange(300))
    assert set(tokens.tolist()) == {place}
    assert logprobs.tolist() == [0.0] * 300


def test_impossible_tokens_and_padding_are_never_drawn() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[: VOCABULARY // 2] = -torch.inf
    tokens, _ = sample(logits, 1.0, np.arange(5000))
    assert tokens.min() >= VOCABULARY // 2
    assert tokens.max() < VOCABULARY


def test_the_ends_of_the_stream_give_tokens_of_positive_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3)) * 4
    logits[[0, 255, 256, VOCABULARY - 1]] = -torch.inf
    for value in (0.0, np.nextafter(1.0, 0.0)):
        monkeypatch.setattr(
            "posttrain.rollout.native.sampler.uniform", lambda seeds, positions, v=value: np.full(len(seeds), v)
        )
        tokens, logprobs = sample(logits, 1.0, np.arange(2))
        assert np.isfinite(logprobs).all()
        assert tokens[0] not in (0, 255, 256, VOCABULARY - 1)


def test_greedy_rows_beside_sampled_ones() -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(VOCABULARY, torch.device("cpu"))
    drawn = sampler.sample(
        logits, np.array([0.0, 1.0, 0.0], np.float32), np.arange(3, dtype=np.uint64), np.zeros(3, np.uint64)
    )
    assert [drawn.token_ids[0], drawn.token_ids[2]] == [int(logits[0].argmax()), int(logits[2].argmax())]
    exact = logits.log_softmax(-1).gather(1, torch.from_numpy(drawn.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(drawn.logprobs, exact, atol=2e-6)


def test_a_smaller_batch_after_a_larger_one_sees_nothing_of_it() -> None:
    """The buffer is kept between calls."""
    sampler = Sampler(VOCABULARY, torch.device("cpu"))
    logits = torch.randn(9, VOCABULARY, generator=torch.Generator().manual_seed(2))
    arguments = np.ones(9, np.float32), np.arange(9, dtype=np.uint64), np.zeros(9, np.uint64)
    whole = sampler.sample(logits, *arguments)
    for start in (0, 4, 7):
        part = sampler.sample(logits[start : start + 2], *(a[start : start + 2] for a in arguments))
        np.testing.assert_array_equal(part.token_ids, whole.token_ids[start : start + 2])
        np.testing.assert_array_equal(part.logprobs, whole.logprobs[start : start + 2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_bad_row_is_named(value: float) -> None:
    logits = torch.zeros(4, VOCABULARY)
    logits[2, 400] = value
    sampler = Sampler(VOCABULARY, torch.device("cpu"))
    with pytest.raises(NonFiniteLogitsError) as caught:
        sampler.sample(logits, np.ones(4, np.float32), np.zeros(4, np.uint64), np.zeros(4, np.uint64))
    assert caught.value.row == 2

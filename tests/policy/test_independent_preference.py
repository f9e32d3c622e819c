"""Every preference row against the numpy implementation written from its formula, on random ragged rows with NaN at
every token outside the mask: losses to 1e-9, gradients to what finite differences can tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.policy.preference import (
    AnswerScores,
    PairScores,
    answer_losses,
    bradley_terry_losses,
    kto_kl,
    pair_losses,
)
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling

from .independent import preference as oracle
from .independent.arrays import Batch, Loss, evaluate

EXACT = {"rtol": 1e-12, "atol": 1e-9}
BY_DIFFERENCES = {"rtol": 1e-6, "atol": 2e-8}

Formula = Callable[[Batch, list[tuple[int, int]]], Loss]
FORMULAS: dict[str, Formula] = {
    "dpo": oracle.dpo,
    "cdpo": oracle.cdpo,
    "robust_dpo": oracle.robust_dpo,
    "ipo": oracle.ipo,
    "simpo": oracle.simpo,
}


def random_batch(seed: int, counts: list[int]) -> Batch:
    random = np.random.default_rng(seed)
    size, width = len(counts), max(counts) + 2
    mask = np.zeros((size, width), np.bool_)
    for row, count in enumerate(counts):
        mask[row, random.choice(width, count, replace=False)] = True

    def column() -> np.ndarray:
        return np.where(mask, -3.0 * random.random((size, width)), np.nan)

    return Batch(logp_new=column(), mask=mask, logp_ref=column())


def leaves(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs with gradient, their sums, the reference's sums, and tokens."""
    mask = torch.from_numpy(batch.mask)
    logprobs = torch.from_numpy(batch.logp_new).clone().requires_grad_()
    reference = torch.where(mask, torch.from_numpy(np.asarray(batch.logp_ref)), 0.0).sum(1)
    return logprobs, torch.where(mask, logprobs, 0.0).sum(1), reference, mask.sum(1)


counts = st.lists(st.integers(1, 6), min_size=2, max_size=8).filter(lambda found: len(found) % 2 == 0)


@pytest.mark.parametrize("name", FORMULAS)
@given(seed=st.integers(0, 2**16), counts=counts)
def test_pairs(name: str, seed: int, counts: list[int]) -> None:
    batch = random_batch(seed, counts)
    order = np.random.default_rng(seed).permutation(len(counts)).reshape(-1, 2)
    pairs = [(int(c), int(r)) for c, r in order]
    expected, gradient = evaluate(FORMULAS[name](batch, pairs), batch)
    logprobs, sums, reference, tokens = leaves(batch)
    chosen, rejected = torch.from_numpy(order.T.copy())
    spec = FIXED_ROWS[name].part
    assert isinstance(spec, Preference)
    scores = PairScores(
        sums[chosen], sums[rejected], tokens[chosen], tokens[rejected], reference[chosen], reference[rejected]
    )
    result = pair_losses(scores, spec, len(pairs))
    result.loss.backward()
    np.testing.assert_allclose(result.loss.item(), expected, **EXACT)
    assert logprobs.grad is not None
    got = logprobs.grad.numpy()
    np.testing.assert_allclose(got[batch.mask], gradient[batch.mask], **BY_DIFFERENCES)
    assert not got[~batch.mask].any(), "a token outside the mask has a gradient"
    if name == "dpo":
        figures = oracle.pair_metrics(batch, pairs)
        margin = result.chosen_reward - result.rejected_reward
        np.testing.assert_allclose(margin.mean(), figures["margin"], **EXACT)
        np.testing.assert_allclose((margin > 0).double().mean(), figures["accuracy"], **EXACT)


@given(seed=st.integers(0, 2**16), counts=counts)
def test_ipo_with_token_means(seed: int, counts: list[int]) -> None:
    batch = random_batch(seed, counts)
    pairs = [(i, i + 1) for i in range(0, len(counts), 2)]
    expected, _ = evaluate(oracle.ipo(batch, pairs, average=True), batch)
    _, sums, reference, tokens = leaves(batch)
    scores = PairScores(sums[0::2], sums[1::2], tokens[0::2], tokens[1::2], reference[0::2], reference[1::2])
    got = pair_losses(scores, Preference(link="squared", score="token_mean"), len(pairs))
    np.testing.assert_allclose(got.loss.item(), expected, **EXACT)


@given(seed=st.integers(0, 2**16), counts=counts)
def test_labelled_answers(seed: int, counts: list[int]) -> None:
    batch = random_batch(seed, counts)
    random = np.random.default_rng(seed)
    labels = random.random(len(counts)) < 0.5
    mismatched = [int(i) for i in np.flatnonzero(random.random(len(counts)) < 0.5)]
    z0 = oracle.kto_baseline(batch.logp_new, batch, mismatched)
    good, bad = ([int(i) for i in np.flatnonzero(of)] for of in (labels, ~labels))
    loss = oracle.kto(batch, good, bad, z0, weight_desirable=1.3, weight_undesirable=0.6)
    expected, gradient = evaluate(loss, batch)
    logprobs, sums, reference, tokens = leaves(batch)
    spec = Preference(link="kto", desirable_weight=1.3, undesirable_weight=0.6)
    kl = kto_kl(sums[mismatched], reference[mismatched], tokens[mismatched], spec)
    np.testing.assert_allclose(kl, z0, **EXACT)
    result = answer_losses(AnswerScores(sums, reference, tokens, torch.from_numpy(labels)), spec, kl, len(counts))
    result.loss.backward()
    np.testing.assert_allclose(result.loss.item(), expected, **EXACT)
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad.numpy()[batch.mask], gradient[batch.mask], **BY_DIFFERENCES)


@given(seed=st.integers(0, 2**16), pairs=st.integers(1, 6), centre=st.sampled_from([0.0, 0.01]))
def test_reward_models(seed: int, pairs: int, centre: float) -> None:
    random = np.random.default_rng(seed)
    chosen, rejected, margins = random.normal(size=(3, pairs))
    expected, to_chosen, to_rejected = oracle.bradley_terry(chosen, rejected, margins, centre)
    leaf = [torch.from_numpy(values.copy()).requires_grad_() for values in (chosen, rejected)]
    spec = RewardModelling(center_weight=centre)
    result = bradley_terry_losses(leaf[0], leaf[1], torch.from_numpy(margins), spec, pairs)
    result.loss.backward()
    np.testing.assert_allclose(result.loss.item(), expected, **EXACT)
    for got, wanted in zip(leaf, (to_chosen, to_rejected), strict=True):
        assert got.grad is not None
        np.testing.assert_allclose(got.grad.numpy(), wanted, **EXACT)

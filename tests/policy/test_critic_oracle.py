"""Advantages, value loss and explained variance against the numpy written from the formula sheet, on random batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from independent import critic as oracle
from independent.arrays import finite_difference

from posttrain.policy.gae import explained_variance, generalised_advantages
from posttrain.policy.value_loss import value_loss


def arrays(seed: int, rows: int, width: int) -> tuple[np.ndarray, ...]:
    """Mask with tool tokens and, now and then, a fully masked row; NaN wherever nothing is trained."""
    random = np.random.default_rng(seed)
    mask = random.random((rows, width)) < random.random((rows, 1))
    rewards, values = (random.normal(size=mask.shape) for _ in range(2))
    return mask, np.where(mask, rewards, 0.0), np.where(mask, values, np.nan), random.normal(size=rows)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_generalised_advantages(seed: int, rows: int, width: int, gamma: float, lam: float, cut: bool) -> None:
    mask, rewards, values, after = arrays(seed, rows, width)
    want, returns = oracle.gae(rewards, values, mask, gamma, lam, after if cut else None)
    start = np.arange(rows + 1) * width
    got = generalised_advantages(
        rewards.reshape(-1),
        values.reshape(-1),
        mask.reshape(-1),
        start,
        gamma=gamma,
        gae_lambda=lam,
        next_values=after if cut else None,
    )
    np.testing.assert_allclose(got.advantages.reshape(mask.shape), want, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got.returns.reshape(mask.shape), returns, rtol=0, atol=1e-12)
    explained = explained_variance(values.reshape(-1), got.returns, mask.reshape(-1))
    by_oracle = oracle.explained_variance(values, returns, mask)
    assert np.isnan(by_oracle) if explained is None else explained == pytest.approx(by_oracle, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0.1, 0.5]))
def test_value_loss_and_its_gradient(seed: int, clip: float | None) -> None:
    mask, returns, old, _ = arrays(seed, 4, 6)
    predicted = np.where(mask, np.nan_to_num(old) + np.random.default_rng(seed + 1).normal(0, 0.4, mask.shape), np.nan)
    near_a_kink = mask & (
        (np.abs(np.abs(predicted - old) - (clip or np.inf)) < 1e-3)
        | (
            np.abs(
                np.abs(predicted - returns) - np.abs(np.clip(predicted, old - (clip or 9), old + (clip or 9)) - returns)
            )
            < 1e-3
        )
        & (np.abs(predicted - old) > (clip or 9))
    )
    loss = oracle.value_loss(old, returns, mask, clip)
    values = torch.tensor(predicted.reshape(-1), requires_grad=True)
    flat = torch.from_numpy(mask.reshape(-1))
    result = value_loss(
        values, torch.tensor(old.reshape(-1)), torch.tensor(returns.reshape(-1)), flat, int(mask.sum()), clip
    )
    assert result.loss.item() == pytest.approx(loss(predicted) if mask.any() else 0.0, abs=1e-12)
    if mask.any():
        result.loss.backward()
        want = finite_difference(loss, np.where(mask, predicted, 0.0), mask)
        got = values.grad.reshape(mask.shape).numpy()  # type: ignore[union-attr]
        np.testing.assert_allclose(got[~near_a_kink], want[~near_a_kink], rtol=0, atol=1e-8)

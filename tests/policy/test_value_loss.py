"""The clipped value loss: golden, finite differences, one sum however it is cut, and nothing from masked tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.policy.value_loss import ValueStatistics, value_loss

EXACT = {"rtol": 0, "atol": 1e-9}


def tensors(golden_file):
    inputs, mask = golden_file.data["inputs"], torch.tensor(golden_file.mask)
    columns = [inputs["values_pred"], inputs["values_old"], golden_file.expected["returns"]]
    flat = [torch.where(mask, torch.tensor(c, dtype=torch.float64), float("nan")).reshape(-1) for c in columns]
    return flat[0].requires_grad_(), flat[1], flat[2], mask.reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_with_nan_at_every_masked_token(golden, dtype):
    file = golden("ppo_gae_dualclip")
    values, old, returns, mask = tensors(file)
    values = values.detach().to(dtype).requires_grad_()
    result = value_loss(values, old, returns, mask, int(mask.sum()), file.data["config"]["value_clip"])
    result.loss.backward()
    exact = EXACT if dtype == torch.float64 else {"rtol": 0, "atol": 1e-5 * 0.0313}
    np.testing.assert_allclose(result.loss.item(), file.expected["value_loss"], **exact)
    got = values.grad.reshape(file.mask.shape)
    np.testing.assert_allclose(got, file.expected["grad_values_pred"], **exact)
    # Five of the sixteen trained tokens moved further than the clip towards their return, or sit on it already.
    assert int(result.statistics.clipped) == int((got[torch.tensor(file.mask)] == 0).sum())


def test_without_a_clip_it_is_half_the_mean_square(golden):
    values, old, returns, mask = tensors(golden("ppo_gae_dualclip"))
    result = value_loss(values, old * float("nan"), returns, mask, int(mask.sum()), None)
    assert result.loss.item() == pytest.approx(0.5 * ((values - returns)[mask] ** 2).mean().item(), abs=1e-12)
    assert result.statistics.clipped.item() == 0


def test_the_clip_stops_only_what_moved_towards_the_return():
    """Old value 0, return 1, clip 0.2: beyond 0.2 towards 1 there is no gradient; away from it there always is."""
    values = torch.tensor([0.1, 0.3, -0.5, 1.9], dtype=torch.float64, requires_grad=True)
    zeros, ones = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    value_loss(values, zeros, ones, torch.ones(4, dtype=torch.bool), 4, 0.2).loss.backward()
    assert values.grad is not None
    np.testing.assert_allclose(values.grad, [(0.1 - 1) / 4, 0.0, (-0.5 - 1) / 4, (1.9 - 1) / 4])


@given(st.integers(1, 30), st.integers(0, 2**32 - 1), st.sampled_from([None, 0.05, 0.2, 1.0]))
def test_gradient_equals_finite_differences(size, seed, clip):
    random = np.random.default_rng(seed)
    values, old, returns = (torch.tensor(random.normal(size=size)) for _ in range(3))
    mask = torch.tensor(random.random(size) < 0.7)
    values.requires_grad_()

    def loss(x):
        return value_loss(x, old, returns, mask, 7, clip).loss

    (gradient,) = torch.autograd.grad(loss(values), values)
    step = 1e-6
    for i in range(size):
        bump = torch.zeros(size, dtype=torch.float64)
        bump[i] = step
        slope = (loss(values.detach() + bump) - loss(values.detach() - bump)) / (2 * step)
        near_a_kink = clip is not None and abs(abs(values[i] - old[i]) - clip) < 1e-4
        if clip is not None and abs(values[i] - old[i]) > clip:
            bound = values[i].clamp(old[i] - clip, old[i] + clip)
            near_a_kink |= abs(abs(values[i] - returns[i]) - abs(bound - returns[i])) < 1e-4
        if not near_a_kink:
            assert gradient[i].item() == pytest.approx(slope.item(), abs=1e-7)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_parts_of_any_size_and_order_add_up(size, seed, part):
    random = np.random.default_rng(seed)
    values, old, returns = (torch.tensor(random.normal(size=size)) for _ in range(3))
    mask = torch.tensor(random.random(size) < 0.7)
    tokens = int(mask.sum())
    values.requires_grad_()
    whole = value_loss(values, old, returns, mask, tokens, 0.2)
    (gradient,) = torch.autograd.grad(whole.loss, values)
    order = torch.tensor(random.permutation(size))
    statistics, summed = ValueStatistics.empty(torch.device("cpu")), torch.zeros(size, dtype=torch.float64)
    for start in range(0, size, part):
        at = order[start : start + part]
        piece = value_loss(values[at], old[at], returns[at], mask[at], tokens, 0.2)
        statistics = statistics + piece.statistics
        if piece.loss.requires_grad:
            summed += torch.autograd.grad(piece.loss, values)[0]
    assert statistics.loss.item() == pytest.approx(whole.loss.item(), abs=1e-12)
    assert statistics.clipped.item() == whole.statistics.clipped.item()
    np.testing.assert_allclose(summed, gradient, rtol=0, atol=1e-12)


def test_nothing_to_train_and_extreme_values_stay_finite():
    nan = torch.full((3,), float("nan"), requires_grad=True)
    nothing = value_loss(nan, nan.detach(), nan.detach(), torch.zeros(3, dtype=torch.bool), 0, 0.2)
    assert nothing.loss.item() == 0.0
    far = torch.tensor([1e15, -1e15], requires_grad=True)
    result = value_loss(far, torch.zeros(2), torch.zeros(2), torch.ones(2, dtype=torch.bool), 2, 0.2)
    result.loss.backward()
    assert far.grad is not None
    assert torch.isfinite(result.loss)
    assert torch.isfinite(far.grad).all()

"""The row as a whole: estimate, loss and critic from one golden file, and inputs at the edge of what floats hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.gae import generalised_advantages
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Need

SPEC = algorithm_row("ppo").spec


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_estimate_loss_and_gradient_equal_the_golden_file(golden, dtype):
    """Rewards and values in, loss and gradient out, with the row's own parts (the file does not whiten)."""
    file = golden("ppo_gae_dualclip")
    mask, inputs, config = file.mask, file.data["inputs"], file.data["config"]
    assert (SPEC.trust_region.clip_low, SPEC.trust_region.clip_high) == (config["eps_low"], config["eps_high"])
    assert SPEC.trust_region.dual_clip == config["dual_clip_c"]
    assert SPEC.critic.value_clip == config["value_clip"]
    flat = {n: np.where(mask, np.array(inputs[n], float), 0.0).reshape(-1) for n in ("token_rewards", "values_old")}
    estimates = generalised_advantages(
        flat["token_rewards"],
        np.where(mask.reshape(-1), flat["values_old"], np.nan),
        mask.reshape(-1),
        np.arange(mask.shape[0] + 1) * mask.shape[1],
        gamma=config["gamma"],
        gae_lambda=config["lam"],
    )
    batch, totals = file.batch(estimates.advantages.reshape(mask.shape))
    logprobs = batch.logprobs.detach().to(dtype).requires_grad_()
    batch = TokenBatch(
        logprobs, batch.old_logprobs.to(dtype), batch.advantages.to(dtype), batch.mask, batch.sequence_index
    )
    result = objective(batch, totals, SPEC)
    result.loss.backward()
    largest = np.abs(file.expected["grad_logp_new"]).max()
    atol = 1e-9 if dtype == torch.float64 else 1e-5 * largest
    np.testing.assert_allclose(result.loss.item(), file.expected["loss"], rtol=0, atol=max(atol, 1e-9))
    got = logprobs.grad.reshape(mask.shape)
    np.testing.assert_allclose(got, file.expected["grad_logp_new"], rtol=0, atol=atol)


@pytest.mark.parametrize("gap", [89.0, -89.0, float("inf"), -float("inf")])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_log_ratios_at_the_edge_give_finite_losses_and_no_gradient(gap, advantage, dtype):
    """The middle token's log-ratio is ``gap``: clamped at 20, clipped by its sign, never more than c times A."""
    old = torch.tensor([-1.0, -1.0, -1.0], dtype=dtype)
    new = torch.tensor([-1.0, -1.0 + gap, -1.0], dtype=dtype, requires_grad=True)
    batch = TokenBatch(
        new,
        old,
        torch.tensor([0.0, advantage, 0.0], dtype=dtype),
        torch.ones(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int64),
    )
    result = objective(batch, step_totals(torch.tensor([3]), torch.tensor([0])), SPEC)
    result.loss.backward()
    assert torch.isfinite(result.loss)
    assert abs(result.loss.item()) <= 3.0 / 3 + 1e-6
    assert new.grad is not None
    assert not new.grad.any()


def test_what_the_row_needs():
    assert Need.CRITIC in SPEC.needs
    assert Need.PROXIMAL_LOGPROBS in SPEC.needs
    assert Need.GROUP not in SPEC.needs
    assert Need.CRITIC not in algorithm_row("grpo").spec.needs
    assert not SPEC.advantage.compares_attempts

"""Distillation against the second implementation in numpy: losses and gradients of ragged rows with interior masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from independent import distillation
from independent.arrays import Batch, finite_difference

from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.distillation import teacher_advantages
from posttrain.policy.divergence import token_divergence
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Aggregation, TrustRegion

EXACT = {"rtol": 0, "atol": 1e-9}
MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [1, 1, 0, 0, 0]]) > 0
S, T, V = 3, 5, 6


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, (S, T, V))


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_divergences_inside_the_objective(beta: float, top_k: int, how: str) -> None:
    names = {"token_mean": "token_mean", "sequence_mean": "sequence_mean_token_mean"}
    student, teacher = logits(1), logits(2)
    expected = distillation.vocabulary_loss(
        teacher,
        MASK,
        lambda p, q: distillation.jsd(p, q, beta),
        how=names[how],
        temperature=0.8,
        top_k=top_k or None,
    )
    flat = torch.tensor(student.reshape(S * T, V), requires_grad=True)
    other = torch.tensor(teacher.reshape(S * T, V))
    mask = torch.tensor(MASK.reshape(-1))
    values = token_divergence(flat / 0.8, other / 0.8, beta, top_k)
    nothing = torch.full((S * T,), float("nan"), dtype=torch.float64)
    logprobs = torch.where(mask, flat.log_softmax(-1)[:, 0], nothing)
    batch = TokenBatch(
        logprobs,
        logprobs.detach(),
        torch.where(mask, 0.0, nothing),
        mask,
        torch.arange(S).repeat_interleave(T),
        extra_losses=torch.where(mask, values, nothing),
    )
    spec = algorithm_row("gkd").spec.override(aggregation=Aggregation(kind=how))  # pyright: ignore[reportArgumentType]
    totals = step_totals(torch.tensor(MASK.sum(1)), torch.arange(S))
    loss = objective(batch, totals, spec).loss
    assert loss.item() == pytest.approx(expected(student), abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, flat)
    numeric = distillation.vocabulary_gradient(expected, student, MASK)
    np.testing.assert_allclose(gradient.reshape(S, T, V), numeric, rtol=0, atol=1e-8)


def rows(seed: int) -> Batch:
    random = np.random.default_rng(seed)
    columns = {n: np.where(MASK, -random.exponential(1.0, MASK.shape), np.nan) for n in ("logp_new", "logp_rollout")}
    return Batch(mask=MASK, group_ids=np.arange(S), **columns)


def product(batch: Batch, advantages: np.ndarray, spec) -> tuple[float, np.ndarray]:
    """Loss and gradient of the project's objective for token advantages (S, T)."""
    flat = {n: torch.tensor(getattr(batch, n).reshape(-1)) for n in ("logp_new", "logp_rollout")}
    logprobs = flat["logp_new"].requires_grad_()
    given = TokenBatch(
        logprobs,
        flat["logp_rollout"],
        torch.tensor(advantages.reshape(-1)),
        torch.tensor(MASK.reshape(-1)),
        torch.arange(S).repeat_interleave(T),
        sampler_logprobs=flat["logp_rollout"],
    )
    loss = objective(given, step_totals(torch.tensor(MASK.sum(1)), torch.arange(S)), spec).loss
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient.numpy().reshape(S, T)


def advantages_of(student: np.ndarray, teacher: np.ndarray, coefficient: float = 1.0) -> np.ndarray:
    index = np.repeat(np.arange(S), T)
    found = teacher_advantages(student.ravel(), teacher.ravel(), MASK.ravel(), index, coefficient)
    return found.reshape(S, T)


@pytest.mark.parametrize("coefficient", [1.0, 0.3])
def test_the_sampled_row(coefficient: float) -> None:
    batch, teacher = rows(3), np.where(MASK, -np.random.default_rng(4).exponential(1.0, MASK.shape), np.nan)
    assert batch.logp_rollout is not None
    advantages = advantages_of(batch.logp_rollout, teacher, coefficient)
    loss, gradient = product(batch, advantages, algorithm_row("on_policy_distillation").spec)
    oracle = distillation.opd(batch, teacher, coefficient)
    base = batch.logp_new
    assert loss == pytest.approx(oracle(base, base), abs=1e-9)
    numeric = finite_difference(lambda moved: oracle(base, moved), base, MASK)
    np.testing.assert_allclose(gradient, numeric, rtol=0, atol=1e-7)


def test_prime_rls_form_from_the_same_parts(golden):
    """Its gap is to the current policy, detached; tokens whose probability fell by more than 0.2 get advantage 0; the
    trust region adds 0.001 (log ratio)^2 to every token."""
    file = golden("opd_prime_rl_ref_kl")
    inputs, config = file.data["inputs"], file.data["config"]
    mask = file.mask
    new, mu, teacher = (np.where(mask, inputs[n], np.nan) for n in ("logp_new", "logp_rollout", "logp_teacher"))
    keep = np.where(mask, np.exp(np.where(mask, new, 0)) - np.exp(np.where(mask, mu, 0)) >= -config["mask_low"], False)
    np.testing.assert_array_equal(keep.astype(float), file.expected["keep_mask"])
    index = np.repeat(np.arange(len(mask)), mask.shape[1])
    found = teacher_advantages(new.ravel(), teacher.ravel(), mask.ravel(), index).reshape(mask.shape)
    spec = algorithm_row("on_policy_distillation").spec.override(
        trust_region=TrustRegion(kind="none", log_ratio_penalty=config["kl_tau"])
    )
    file.data["inputs"]["logp_old"] = inputs["logp_rollout"]
    batch, totals = file.batch(np.where(keep, found, 0.0))
    result = objective(replace(batch, sampler_logprobs=batch.old_logprobs), totals, spec)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(file.expected["loss"], abs=1e-9)
    np.testing.assert_allclose(batch.logprobs.grad.reshape(mask.shape), file.expected["grad_logp_new"], **EXACT)

"""Which anchor has whose gradient: every pair of estimator and place, by exact enumeration of a small vocabulary.

Every token is taken once and weighted by the probability with which the data's policy samples it, so that sums are
expectations. ``reverse`` is the gradient of KL(policy || reference) for the logits, ``forward`` that of
KL(reference || policy).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.policy.aggregation import step_totals
from posttrain.policy.anchors import token_penalties
from posttrain.policy.batch import TokenBatch
from posttrain.policy.divergence import token_divergence
from posttrain.policy.objective import objective
from posttrain.settings.objective import Anchor, ObjectiveSpec, Ratio

EXACT = {"rtol": 0, "atol": 1e-12}
V = 5
LOGITS = torch.tensor([0.3, -0.7, 1.1, 0.0, -1.4], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.2, 0.9, -1.0], dtype=torch.float64).log_softmax(0)
OLDER = torch.tensor([0.1, -0.2, 0.6, 0.5, -1.0], dtype=torch.float64).log_softmax(0)
"""Another policy that the data may come from."""

P, R = LOGITS.softmax(0), REFERENCE.exp()
REVERSE = P * ((P.log() - REFERENCE) - (P * (P.log() - REFERENCE)).sum())
FORWARD = P - R


def in_loss(estimator: str, sampled_by: torch.Tensor) -> torch.Tensor:
    """Expected gradient of the anchor alone in the loss, data from the policy with these log-probs."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    batch = TokenBatch(
        logprobs,
        sampled_by,
        torch.zeros(V, dtype=torch.float64),
        torch.ones(V, dtype=torch.bool),
        torch.zeros(V, dtype=torch.int64),
        sampler_logprobs=sampled_by,
        reference_logprobs=REFERENCE,
        anchor_weights=V * sampled_by.exp(),
    )
    spec = ObjectiveSpec(anchor=Anchor(weight=1.0, estimator=estimator), ratio=Ratio(denominator="sampler"))  # pyright: ignore[reportArgumentType]
    loss = objective(batch, step_totals(torch.tensor([V]), torch.tensor([0])), spec).loss
    return torch.autograd.grad(loss, logits)[0]


def in_reward(estimator: str) -> torch.Tensor:
    """Expected gradient of the score function with the penalty as a constant cost."""
    spec = Anchor(weight=1.0, place="reward", estimator=estimator)  # pyright: ignore[reportArgumentType]
    costs = torch.from_numpy(token_penalties(P.log().numpy(), REFERENCE.numpy(), np.ones(V, np.bool_), spec))
    return (P * costs) @ (torch.eye(V, dtype=torch.float64) - P)


ON_POLICY = {"k1": torch.zeros(V, dtype=torch.float64), "k2": REVERSE, "k3": FORWARD, "k3_corrected": REVERSE}


@pytest.mark.parametrize("estimator", ON_POLICY)
def test_in_the_loss_on_the_policys_own_samples(estimator: str) -> None:
    torch.testing.assert_close(in_loss(estimator, P.log()), ON_POLICY[estimator], **EXACT)
    named = Anchor(weight=1.0, estimator=estimator).biased_pair  # pyright: ignore[reportArgumentType]
    assert (named is not None) == (estimator == "k1")


@pytest.mark.parametrize(("estimator", "expected"), [("k1", REVERSE), ("k3", REVERSE - FORWARD)])
def test_in_the_reward(estimator: str, expected: torch.Tensor) -> None:
    torch.testing.assert_close(in_reward(estimator), expected, **EXACT)
    named = Anchor(weight=1.0, place="reward", estimator=estimator).biased_pair  # pyright: ignore[reportArgumentType]
    assert (named is not None) == (estimator == "k3")


def test_on_an_older_policys_samples_only_the_corrected_one_is_right() -> None:
    torch.testing.assert_close(in_loss("k3_corrected", OLDER), REVERSE, **EXACT)
    for estimator in ("k1", "k2", "k3"):
        assert float((in_loss(estimator, OLDER) - REVERSE).abs().max()) > 0.01


def test_the_whole_vocabulary_is_right_wherever_the_prefix_comes_from() -> None:
    logits = LOGITS.clone().requires_grad_()
    value = token_divergence(logits[None], REFERENCE[None], 1.0)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), logits)[0], REVERSE, **EXACT)
    assert value.item() == pytest.approx(float((P * (P.log() - REFERENCE)).sum()), abs=1e-12)


def test_near_the_reference_the_two_directions_agree_to_second_order() -> None:
    """Why k3 in the loss works near the reference, and why k3 in the reward hardly does anything there."""
    step = 1e-3
    near = REFERENCE + step * torch.tensor([1.0, -1.0, 0.5, 0.3, -0.8], dtype=torch.float64)
    p = near.softmax(0)
    reverse = p * ((p.log() - REFERENCE) - (p * (p.log() - REFERENCE)).sum())
    forward = p - R
    assert float(reverse.norm()) > 0.1 * step
    assert float((reverse - forward).norm()) < 2 * step * float(reverse.norm())

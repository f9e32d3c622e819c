"""Critic, preference and distillation formulas against their golden vectors to 1e-9, NaN on every masked token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import critic, distillation, preference
from .arrays import Array, Batch, finite_difference
from .test_golden import check, dirty, load


def array(golden: dict[str, Any], name: str, batch: Batch) -> Array:
    return np.where(batch.mask, np.asarray(golden["inputs"][name], dtype=np.float64), np.nan)


def test_gae_and_value_loss() -> None:
    golden = load("ppo_gae_dualclip")
    batch = dirty(golden["inputs"])
    config, expected = golden["config"], golden["expected"]
    rewards, old = array(golden, "token_rewards", batch), array(golden, "values_old", batch)
    advantages, returns = critic.gae(rewards, old, batch.mask, config["gamma"], config["lam"])
    np.testing.assert_allclose(advantages, expected["advantages"], atol=1e-9)
    np.testing.assert_allclose(returns, expected["returns"], atol=1e-9)
    loss = critic.value_loss(old, returns, batch.mask, config["value_clip"])
    predicted = array(golden, "values_pred", batch)
    assert loss(predicted) == pytest.approx(expected["value_loss"], rel=0, abs=1e-9)
    slope = finite_difference(loss, predicted, batch.mask)
    np.testing.assert_allclose(slope, expected["grad_values_pred"], rtol=0, atol=1e-9)


def test_dpo() -> None:
    golden = load("dpo")
    batch = dirty(golden["inputs"])
    pairs = [tuple(p) for p in golden["inputs"]["pairs_chosen_rejected"]]
    expected = golden["expected"]
    check(batch, preference.dpo(batch, pairs, golden["config"]["beta"]), expected["loss"], expected["grad_logp_new"])
    for pair, value in zip(pairs, expected["per_pair"], strict=True):
        assert preference.dpo(batch, [pair])(batch.logp_new, batch.logp_new) == pytest.approx(value, abs=1e-9)


def test_kto() -> None:
    golden = load("kto")
    batch = dirty(golden["inputs"])
    inputs, expected = golden["inputs"], golden["expected"]
    loss = preference.kto(batch, inputs["desirable"], inputs["undesirable"], inputs["z0"])
    check(batch, loss, expected["loss"], expected["grad_logp_new"])


def test_bradley_terry() -> None:
    golden = load("reward_model_bt")
    inputs = {name: np.asarray(values) for name, values in golden["inputs"].items()}
    expected = golden["expected"]
    chosen, rejected, margin = inputs["reward_chosen"], inputs["reward_rejected"], inputs["margin"]
    loss, to_chosen, to_rejected = preference.bradley_terry(chosen, rejected, margin, golden["config"]["center_coef"])
    assert loss == pytest.approx(expected["loss"], abs=1e-9)
    np.testing.assert_allclose(to_chosen, expected["grad_chosen"], atol=1e-9)
    np.testing.assert_allclose(to_rejected, expected["grad_rejected"], atol=1e-9)
    # `loss_plain` of the file leaves out the margin and the centring term.
    assert preference.bradley_terry(chosen, rejected)[0] == pytest.approx(expected["loss_plain"], abs=1e-9)


def test_on_policy_distillation() -> None:
    golden = load("opd_reverse_kl")
    batch = dirty(golden["inputs"])
    teacher = array(golden, "logp_teacher", batch)
    expected = golden["expected"]
    check(batch, distillation.opd(batch, teacher), expected["loss"], expected["grad_logp_new"])
    np.testing.assert_allclose(
        distillation.opd_advantage(batch.logp_rollout, teacher, batch.mask), expected["advantages"], atol=1e-9
    )


def test_prime_rl_ref_kl() -> None:
    golden = load("opd_prime_rl_ref_kl")
    batch = dirty(golden["inputs"])
    loss = distillation.prime_rl_ref_kl(batch, array(golden, "logp_teacher", batch))
    check(batch, loss, golden["expected"]["loss"], golden["expected"]["grad_logp_new"])


def test_full_vocabulary_reverse_kl() -> None:
    exact = load("kl_estimators")["expected"]["exact_vocab4"]
    logits = np.asarray(exact["logits"]).reshape(1, 1, 4)
    teacher = np.log(np.asarray(exact["ref_probs"])).reshape(1, 1, 4)
    mask = np.ones((1, 1), dtype=bool)
    log_student = distillation.log_softmax(logits[0, 0])
    for divergence, value, slope in (
        (distillation.reverse_kl, "reverse_kl", "grad_reverse_kl"),
        (distillation.kl, "forward_kl", "grad_forward_kl"),
    ):
        loss = distillation.vocabulary_loss(teacher, mask, divergence)
        assert loss(logits) == pytest.approx(exact[value], abs=1e-9)
        got = distillation.vocabulary_gradient(loss, logits, mask)
        np.testing.assert_allclose(got[0, 0], exact[slope], atol=1e-9)
    np.testing.assert_allclose(
        distillation.reverse_kl_logit_gradient(log_student, teacher[0, 0]), exact["grad_reverse_kl"], atol=1e-9
    )


@pytest.mark.parametrize("placement", ["k1_as_loss", "k2_as_loss", "k3_as_loss", "k1_in_reward", "k3_in_reward"])
def test_expected_gradients_of_the_estimators(placement: str) -> None:
    """Exact enumeration over four tokens: which placements give the reverse-KL gradient (section C)."""
    exact = load("kl_estimators")["expected"]["exact_vocab4"]
    p, q = np.asarray(exact["probs"]), np.asarray(exact["ref_probs"])
    x = np.log(p) - np.log(q)
    total = np.zeros(4)
    for v in range(4):
        score = np.eye(4)[v] - p
        weight = {
            "k1_as_loss": 1.0,
            "k2_as_loss": x[v],
            "k3_as_loss": 1 - np.exp(-x[v]),
            "k1_in_reward": x[v],
            "k3_in_reward": np.exp(-x[v]) - 1 + x[v],
        }[placement]
        total += p[v] * weight * score
    np.testing.assert_allclose(total, exact[f"Egrad_{placement}"], atol=1e-12)

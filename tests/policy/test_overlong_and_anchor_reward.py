"""Overlong rules, and the KL term that is subtracted from rewards."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.errors import InputError
from posttrain.policy.anchors import reward_penalty
from posttrain.policy.overlong import overlong_masks, soft_overlong_penalty
from posttrain.settings.objective import Anchor, Overlong
from posttrain.trajectory import FinishReason


def test_golden_penalty(golden):
    file = golden("dapo_soft_overlong")
    config = file.data["config"]
    spec = Overlong(soft_penalty=True, buffer_tokens=config["L_cache"])
    got = soft_overlong_penalty(np.array(file.data["inputs"]["lengths"]), config["L_max"], spec)
    np.testing.assert_allclose(got, file.expected["penalty"], rtol=0, atol=1e-12)


def test_penalty_is_off_by_default_and_scales_with_its_weight():
    lengths = np.array([10, 20])
    assert soft_overlong_penalty(lengths, 20, Overlong()).tolist() == [0, 0]
    spec = Overlong(soft_penalty=True, buffer_tokens=20, penalty_weight=0.5)
    assert soft_overlong_penalty(lengths, 20, spec).tolist() == [-0.25, -0.5]


@pytest.mark.parametrize("buffer", [None, 21])
def test_a_buffer_that_is_no_part_of_the_budget_is_refused(buffer):
    with pytest.raises(InputError, match=r"policy\.overlong\.buffer_tokens"):
        soft_overlong_penalty(np.array([1]), 20, Overlong(soft_penalty=True, buffer_tokens=buffer))


@pytest.mark.parametrize(
    ("mode", "in_loss", "in_baseline"),
    [
        ("off", [True, True, True], [True, True, True]),
        ("loss", [True, False, False], [True, True, True]),
        ("loss_and_baseline", [True, False, False], [True, False, False]),
    ],
)
def test_overlong_filter(mode, in_loss, in_baseline):
    reasons = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT]
    loss, baseline = overlong_masks(reasons, Overlong(filter=mode))
    assert loss.tolist() == in_loss
    assert baseline.tolist() == in_baseline


def test_reward_penalty_sums_over_trained_tokens_of_each_sequence():
    trainer = np.array([-1.0, np.nan, -2.0, -0.5], np.float32)
    reference = np.array([-1.5, -3.0, -1.0, -0.5], np.float32)
    mask = np.array([True, False, True, True])
    index = np.array([0, 0, 2, 2])
    got = reward_penalty(trainer, reference, mask, index, 3, Anchor(weight=0.1, place="reward", estimator="k1"))
    assert got.tolist() == [0.5, 0.0, -1.0]


@pytest.mark.parametrize(("estimator", "key"), [("k1", "Egrad_k1_in_reward"), ("k3", "Egrad_k3_in_reward")])
def test_expected_gradient_of_the_reward_estimators(golden, estimator, key):
    """Exact enumeration of a vocabulary of four: sum_v p_v value_v grad log p_v."""
    exact = golden("kl_estimators").expected["exact_vocab4"]
    p, reference = np.array(exact["probs"]), np.array(exact["ref_probs"])
    spec = Anchor(weight=1.0, place="reward", estimator=estimator)
    values = reward_penalty(np.log(p), np.log(reference), np.ones(4, bool), np.arange(4), 4, spec)
    gradient = (p * values) @ (np.eye(4) - p)
    np.testing.assert_allclose(gradient, exact[key], rtol=0, atol=1e-12)

"""Losses on preference data: golden vectors, formulas written a second time, splits, extremes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.policy.preference import (
    AnswerScores,
    PairScores,
    answer_losses,
    bradley_terry_losses,
    kto_kl,
    pair_losses,
)
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling

GOLDEN = Path(__file__).parents[1] / "golden"
PAIR_SPECS = {
    "dpo": Preference(),
    "cdpo": Preference(label_noise=0.1),
    "robust": Preference(label_noise=0.2, noise_correction="robust"),
    "ipo": Preference(link="squared"),
    "ipo_mean": Preference(link="squared", score="token_mean"),
    "simpo": Preference(beta=2.0, score="token_mean", reference=False, margin=1.0),
    "dpo_nll": Preference(chosen_nll_weight=0.5),
}


def load(name, dtype=torch.float64):
    data = json.loads((GOLDEN / f"{name}.json").read_text())
    inputs = {k: torch.tensor(v, dtype=dtype) for k, v in data["inputs"].items() if isinstance(v, list)}
    return data, inputs


def row_sums(matrix, mask):
    """Sums over masked tokens; NaN at a token outside the mask must not reach them."""
    return torch.where(mask, matrix, 0.0).sum(1)


def close(got, expected, dtype):
    """To 1e-9 in float64, to 1e-5 of the largest entry in float32."""
    limit = 1e-9 if dtype == torch.float64 else 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


@DTYPES
def test_dpo_equals_the_golden_vector(dtype):
    data, inputs = load("dpo", dtype)
    mask = inputs["mask"] == 1
    new = torch.where(mask, inputs["logp_new"], math.nan).requires_grad_()
    sums, reference = row_sums(new, mask), row_sums(inputs["logp_ref"], mask)
    chosen, rejected = torch.tensor(data["inputs"]["pairs_chosen_rejected"]).T
    tokens = mask.sum(1)
    scores = PairScores(
        sums[chosen], sums[rejected], tokens[chosen], tokens[rejected], reference[chosen], reference[rejected]
    )
    result = pair_losses(scores, Preference(), len(chosen))
    result.loss.backward()
    close(result.loss.item(), data["expected"]["loss"], dtype)
    close(result.per_pair, data["expected"]["per_pair"], dtype)
    close(new.grad, data["expected"]["grad_logp_new"], dtype)


@DTYPES
def test_kto_equals_the_golden_vector(dtype):
    data, inputs = load("kto", dtype)
    mask = inputs["mask"] == 1
    new = torch.where(mask, inputs["logp_new"], math.nan).requires_grad_()
    desirable = torch.zeros(len(mask), dtype=torch.bool)
    desirable[data["inputs"]["desirable"]] = True
    scores = AnswerScores(row_sums(new, mask), row_sums(inputs["logp_ref"], mask), mask.sum(1), desirable)
    result = answer_losses(scores, Preference(link="kto"), data["inputs"]["z0"], len(mask))
    result.loss.backward()
    close(result.loss.item(), data["expected"]["loss"], dtype)
    close(result.reward / 0.1, data["expected"]["log_ratio"], dtype)
    close(new.grad, data["expected"]["grad_logp_new"], dtype)


@DTYPES
def test_bradley_terry_equals_the_golden_vector(dtype):
    data, inputs = load("reward_model_bt", dtype)
    chosen = inputs["reward_chosen"].requires_grad_()
    rejected = inputs["reward_rejected"].requires_grad_()
    result = bradley_terry_losses(chosen, rejected, inputs["margin"], RewardModelling(center_weight=0.01), 3)
    result.loss.backward()
    plain = bradley_terry_losses(chosen, rejected, torch.zeros(3), RewardModelling(), 3)
    expected = data["expected"]
    close(result.loss.item(), expected["loss"], dtype)
    close(plain.loss.item(), expected["loss_plain"], dtype)
    close(chosen.grad, expected["grad_chosen"], dtype)
    close(rejected.grad, expected["grad_rejected"], dtype)


def made_pairs(count, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return (-scale * torch.rand(count, generator=generator, dtype=torch.float64)).requires_grad_()

    tokens = torch.randint(1, 9, (2, count), generator=generator)
    return PairScores(draw(), draw(), tokens[0], tokens[1], draw().detach(), draw().detach())


def take(scores, index):
    return PairScores(*(getattr(scores, name)[index] for name in PairScores.__slots__))


def formula(name, c, r, nc, nr, rc, rr):
    """Each loss of one pair in plain numbers, from its paper."""

    def sigmoid(x):
        return 1.0 / (1.0 + math.exp(-x))

    delta = (c - rc) - (r - rr)
    h = 0.1 * delta
    return {
        "dpo": -math.log(sigmoid(h)),
        "cdpo": -0.9 * math.log(sigmoid(h)) - 0.1 * math.log(1 - sigmoid(h)),
        "robust": (-0.8 * math.log(sigmoid(h)) + 0.2 * math.log(1 - sigmoid(h))) / 0.6,
        "ipo": (delta - 5.0) ** 2,
        "ipo_mean": ((c - rc) / nc - (r - rr) / nr - 5.0) ** 2,
        "simpo": -math.log(sigmoid(2.0 * (c / nc - r / nr) - 1.0)),
        "dpo_nll": -math.log(sigmoid(h)) - 0.5 * c / nc,
    }[name]


@pytest.mark.parametrize("name", PAIR_SPECS)
def test_each_pair_loss_is_its_papers_formula(name):
    scores = made_pairs(7)
    got = pair_losses(scores, PAIR_SPECS[name], 7)
    columns = (
        scores.chosen,
        scores.rejected,
        scores.chosen_tokens,
        scores.rejected_tokens,
        scores.reference_chosen,
        scores.reference_rejected,
    )
    expected = [formula(name, *(float(column.detach()[i]) for column in columns)) for i in range(7)]
    np.testing.assert_allclose(got.per_pair, expected, rtol=1e-12)
    np.testing.assert_allclose(got.loss.item(), np.mean(expected), rtol=1e-12)


@pytest.mark.parametrize("name", PAIR_SPECS)
def test_gradients_equal_finite_differences(name):
    scores = made_pairs(3)

    def loss(chosen, rejected):
        changed = PairScores(
            chosen,
            rejected,
            scores.chosen_tokens,
            scores.rejected_tokens,
            scores.reference_chosen,
            scores.reference_rejected,
        )
        return pair_losses(changed, PAIR_SPECS[name], 5).loss

    assert torch.autograd.gradcheck(loss, (scores.chosen, scores.rejected))


@given(order=st.permutations(range(6)), cut=st.integers(0, 6), name=st.sampled_from(sorted(PAIR_SPECS)))
def test_any_order_and_any_cut_into_micro_batches_give_the_same(order, cut, name):
    def gradient(parts):
        scores = made_pairs(6)
        total = 0.0
        for part in parts:
            loss = pair_losses(take(scores, torch.tensor(part, dtype=torch.long)), PAIR_SPECS[name], 6).loss
            loss.backward()
            total += loss.item()
        return total, scores.chosen.grad, scores.rejected.grad

    for whole, cut_up in zip(gradient([list(range(6))]), gradient([order[:cut], order[cut:]]), strict=True):
        np.testing.assert_allclose(cut_up, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PAIR_SPECS)
@pytest.mark.parametrize("size", [0.0, 89.0, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_log_probs_give_finite_losses_and_gradients(name, size, dtype):
    chosen = torch.tensor([0.0, -size], dtype=dtype, requires_grad=True)
    rejected = torch.tensor([-size, 0.0], dtype=dtype, requires_grad=True)
    one, zero = torch.ones(2, dtype=torch.long), torch.zeros(2, dtype=dtype)
    result = pair_losses(PairScores(chosen, rejected, one, one, zero, zero), PAIR_SPECS[name], 2)
    result.loss.backward()
    for values in (result.per_pair, chosen.grad, rejected.grad):
        assert torch.isfinite(values).all()


def test_kto_stays_finite_and_its_gradient_dies_where_sigmoid_does():
    logprob = torch.tensor([-1e5, 0.0, -1e5, 0.0], requires_grad=True)
    reference = torch.tensor([0.0, -1e5, 0.0, -1e5])
    desirable = torch.tensor([True, True, False, False])
    result = answer_losses(AnswerScores(logprob, reference, torch.ones(4), desirable), Preference(link="kto"), 0.0, 4)
    result.loss.backward()
    np.testing.assert_allclose(result.per_answer, [1.0, 0.0, 0.0, 1.0])
    assert torch.isfinite(logprob.grad).all()


def test_the_reference_point_of_kto_is_one_number_of_the_step_and_never_negative():
    spec, tokens = Preference(link="kto"), torch.ones(3)
    up = torch.tensor([1.0, 2.0, 6.0])
    assert kto_kl(up, torch.zeros(3), tokens, spec) == pytest.approx(3.0)
    assert kto_kl(-up, torch.zeros(3), tokens, spec) == 0.0
    assert kto_kl(up[:0], up[:0], tokens[:0], spec) == 0.0


def test_robust_loss_is_unbiased_under_the_noise_it_assumes():
    # E over swapped labels with probability e of the robust loss is the clean loss.
    scores, noise = made_pairs(5), 0.2
    spec = PAIR_SPECS["robust"]
    swapped = PairScores(
        scores.rejected,
        scores.chosen,
        scores.rejected_tokens,
        scores.chosen_tokens,
        scores.reference_rejected,
        scores.reference_chosen,
    )
    mixed = (1 - noise) * pair_losses(scores, spec, 5).loss + noise * pair_losses(swapped, spec, 5).loss
    np.testing.assert_allclose(mixed.item(), pair_losses(scores, Preference(), 5).loss.item(), rtol=1e-12)


def test_a_reference_that_is_missing_is_an_error_and_an_unused_one_is_not_read():
    scores = made_pairs(2)
    without = PairScores(scores.chosen, scores.rejected, scores.chosen_tokens, scores.rejected_tokens)
    with pytest.raises(ValueError, match="no reference log-probs"):
        pair_losses(without, Preference(), 2)
    simpo = PAIR_SPECS["simpo"]
    assert pair_losses(without, simpo, 2).loss == pair_losses(scores, simpo, 2).loss


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"link": "squared", "label_noise": 0.1}, "label_noise belongs to link = 'logistic'"),
        ({"link": "kto", "margin": 1.0}, "margin belongs to link = 'logistic'"),
        ({"link": "kto", "reference": False}, "needs reference = true"),
        ({"link": "kto", "chosen_nll_weight": 1.0}, "is for pairs"),
        ({"label_noise": 0.5}, "less than 0.5"),
        ({"beta": 0.0}, "greater than 0"),
    ],
)
def test_contradictions_are_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        Preference(**fields)

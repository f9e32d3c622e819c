"""Loss and gradient of every row equal the golden vectors to 1e-9, with NaN at every masked token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Advantage, Aggregation, Anchor, ObjectiveSpec, TrustRegion

EXACT = {"rtol": 0, "atol": 1e-9}


def check(golden_file, spec, expected=None, gradient="grad_logp_new", loss="loss"):
    expected = golden_file.expected if expected is None else expected
    got_loss, got_gradient, statistics, tokens = golden_file.run(spec)
    np.testing.assert_allclose(got_loss, expected[loss], **EXACT)
    np.testing.assert_allclose(got_gradient, expected[gradient], **EXACT)
    return statistics.finalize(tokens)


@pytest.mark.parametrize("name", ["grpo", "ragged/grpo"])
def test_grpo_with_its_paper_anchor(golden, name):
    spec = algorithm_row("grpo").spec.override(anchor=Anchor(weight=0.04))
    file = golden(name)
    check(file, spec)
    np.testing.assert_allclose(file.advantages(spec.advantage).values, file.expected["advantages"], **EXACT)
    assert file.run(algorithm_row("grpo").spec)[0] == pytest.approx(file.expected["policy_loss_only"], abs=1e-9)


@pytest.mark.parametrize(
    ("key", "advantage"),
    [("if_ddof0_eps1e6", Advantage(std_ddof=0)), ("if_ddof1_eps1e4", Advantage(std_epsilon=1e-4))],
)
def test_grpo_std_conventions_are_selectable(golden, key, advantage):
    spec = algorithm_row("grpo").spec.override(anchor=Anchor(weight=0.04), advantage=advantage)
    file = golden("ragged/grpo")
    check(file, spec, file.expected[key])


@pytest.mark.parametrize("name", ["dapo", "ragged/dapo"])
def test_dapo(golden, name):
    spec = algorithm_row("dapo").spec
    file = golden(name)
    values = check(file, spec)
    assert values["policy/clip_fraction_high"] == pytest.approx(file.expected["clip_frac_high"], abs=1e-12)
    assert values["policy/clip_fraction_low"] == pytest.approx(file.expected["clip_frac_low"], abs=1e-12)
    paper = spec.override(aggregation=Aggregation(kind="prompt_average"))
    check(file, paper, gradient="grad_logp_new_prompt_mean", loss="loss_prompt_mean")


@pytest.mark.parametrize(("name", "length"), [("dr_grpo", 4), ("ragged/dr_grpo", 8)])
def test_dr_grpo(golden, name, length):
    file = golden(name)
    spec = algorithm_row("dr_grpo").spec.for_generation_budget(length)
    check(file, spec)
    np.testing.assert_allclose(file.advantages(spec.advantage).values, file.expected["advantages"], **EXACT)


@pytest.mark.parametrize("name", ["rloo_reinforce", "ragged/rloo"])
def test_reinforce_leave_one_out(golden, name):
    file = golden(name)
    spec = algorithm_row("reinforce_loo").spec
    check(file, spec)
    np.testing.assert_allclose(file.advantages(spec.advantage).values, file.expected["advantages"], **EXACT)


KINDS = {
    "token-mean": Aggregation(kind="token_mean"),
    "seq-mean-token-mean": Aggregation(kind="sequence_mean"),
    "seq-mean-token-sum": Aggregation(kind="sequence_sum"),
    "seq-mean-token-sum-norm(4)": Aggregation(kind="constant_length", length=4),
    "seq-mean-token-sum-norm(8)": Aggregation(kind="constant_length", length=8),
    "prompt-mean": Aggregation(kind="prompt_average"),
}


@pytest.mark.parametrize("name", ["aggregations", "ragged/aggregations"])
def test_aggregations(golden, name):
    file = golden(name)
    checked = 0
    for key, expected in file.expected["results"].items():
        if key in KINDS:
            check(file, algorithm_row("grpo").spec.override(aggregation=KINDS[key]), expected)
            checked += 1
    assert checked == 5


def test_dual_clip_with_token_advantages(golden):
    file = golden("ppo_gae_dualclip")
    spec = ObjectiveSpec(trust_region=TrustRegion(dual_clip=3.0), aggregation=Aggregation(kind="token_mean"))
    batch, totals = file.batch(np.array(file.expected["advantages"]))
    result = objective(batch, totals, spec)
    result.loss.backward()
    np.testing.assert_allclose(result.loss.item(), file.expected["loss"], **EXACT)
    np.testing.assert_allclose(batch.logprobs.grad.reshape(file.mask.shape), file.expected["grad_logp_new"], **EXACT)
    values = result.statistics.finalize(totals.tokens)
    # Ratios 3.5 and 6 on negative advantages, and nothing else, lie beyond c = 3.
    assert values["policy/clip_fraction_dual"] == pytest.approx(2 / 16)
    active = np.array(file.expected["grad_active"]).sum()
    assert values["policy/gradient_token_share"] == pytest.approx(active / 16)


ESTIMATORS = {"k1": "k1", "k2": "k2", "k3": "k3", "k3_corrected": "k3_times_ratio"}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_anchor_estimators_in_the_loss(golden, estimator):
    file = golden("kl_estimators")
    spec = ObjectiveSpec(anchor=Anchor(weight=1.0, estimator=estimator))
    batch, totals = file.batch(np.zeros(file.mask.shape))
    result = objective(batch, totals, spec)
    result.loss.backward()
    expected = file.expected["estimators"][ESTIMATORS[estimator]]
    np.testing.assert_allclose(result.loss.item(), expected["loss"], **EXACT)
    np.testing.assert_allclose(batch.logprobs.grad.reshape(file.mask.shape), expected["grad_logp_new"], **EXACT)


def test_anchor_weights_per_environment_replace_the_rows(golden):
    file = golden("kl_estimators")
    spec = ObjectiveSpec(anchor=Anchor(weight=5.0, estimator="k2"))
    batch, totals = file.batch(np.zeros(file.mask.shape))
    weights = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)[batch.sequence_index]
    reference = torch.where(weights == 0, float("nan"), batch.reference_logprobs)
    result = objective(replace(batch, anchor_weights=weights, reference_logprobs=reference), totals, spec)
    result.loss.backward()
    gradient = batch.logprobs.grad.reshape(file.mask.shape)
    # An environment without anchor is not scored by the reference: NaN there must not spread.
    assert torch.equal(gradient[1:5], torch.zeros(4, file.mask.shape[1], dtype=torch.float64))
    k3 = np.array(file.expected["estimators"]["k3"]["token_value"])
    kl = result.statistics.finalize(totals.tokens)["policy/anchor_kl"]
    assert kl == pytest.approx((k3[0].sum() + k3[5].sum()) / 6, abs=1e-9)
    values = np.array(file.expected["estimators"]["k2"]["token_value"])
    assert result.loss.item() == pytest.approx((2 * values[0].sum() + values[5].sum()) / 16, abs=1e-9)


PLACES = {"Egrad_k1_as_loss": "k1", "Egrad_k2_as_loss": "k2", "Egrad_k3_as_loss": "k3"} | {
    "Egrad_ratio_times_k3_as_loss": "k3_corrected"
}


@pytest.mark.parametrize("key", PLACES)
def test_expected_gradient_of_the_loss_estimators(golden, key):
    """Exact enumeration of a vocabulary of four: every token once, weighted by its probability."""
    exact = golden("kl_estimators").expected["exact_vocab4"]
    logits = torch.tensor(exact["logits"], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, 0)
    mask, sequence = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    batch = TokenBatch(
        logprobs,
        logprobs.detach(),
        torch.zeros(4, dtype=torch.float64),
        mask,
        sequence,
        reference_logprobs=torch.tensor(exact["ref_probs"], dtype=torch.float64).log(),
        anchor_weights=logprobs.detach().exp() * 4,
    )
    spec = ObjectiveSpec(anchor=Anchor(weight=1.0, estimator=PLACES[key]))
    totals = step_totals(torch.tensor([4]), torch.tensor([0]))
    (gradient,) = torch.autograd.grad(objective(batch, totals, spec).loss, logits)
    np.testing.assert_allclose(gradient, exact[key], **EXACT)
    if PLACES[key] in ("k2", "k3_corrected"):
        np.testing.assert_allclose(gradient, exact["grad_reverse_kl"], **EXACT)


def test_clip_fractions_and_out_of_bounds_share(golden):
    """On the metrics file: counted by sign, and regardless of sign, are different numbers."""
    file = golden("metrics")
    spec = algorithm_row("grpo").spec
    _, _, statistics, tokens = file.run(spec)
    values = statistics.finalize(tokens)
    assert values["policy/clip_fraction_high"] == pytest.approx(file.expected["clip_frac_high_0p2"], abs=1e-12)
    assert values["policy/clip_fraction_low"] == pytest.approx(file.expected["clip_frac_low_0p2"], abs=1e-12)
    assert values["policy/out_of_bounds_share"] == pytest.approx(file.expected["oob_frac_0p2"], abs=1e-12)

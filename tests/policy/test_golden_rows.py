"""The other rows, the corrections and the advantages behind them, against the golden vectors to 1e-9."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.policy.advantages import Attempts, sequence_advantages
from posttrain.policy.covariance import chosen_by_covariance, covariances
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Advantage, Aggregation, Anchor, Correction, ObjectiveSpec, TrustRegion

EXACT = {"rtol": 0, "atol": 1e-9}

ROWS = [
    ("cispo", "cispo", {}),
    ("gspo", "gspo", {}),
    ("maxrl", "maxrl", {"advantage": Advantage(std_epsilon=0.0)}),
    ("dppo_binary_tv", "dppo_tv", {"aggregation": Aggregation(length=4)}),
    ("decoupled_ppo", "decoupled_ppo", {"correction": Correction(high=1e9)}),
    ("two_sided_grpo", "two_sided_grpo", {}),
    ("prime_rl_2025_double_sided", "prime_rl_2025", {}),
    ("ragged/cispo", "cispo", {}),
    ("ragged/gspo", "gspo", {}),
    ("ragged/maxrl", "maxrl", {"advantage": Advantage(std_epsilon=0.0)}),
    ("ragged/dppo_binary_tv", "dppo_tv", {"aggregation": Aggregation(length=8)}),
    ("ragged/decoupled_ppo", "decoupled_ppo", {"correction": Correction(high=1e9)}),
]


@pytest.mark.parametrize(("name", "row", "parts"), ROWS)
def test_loss_gradient_and_advantages(golden, name, row, parts):
    file, spec = golden(name), algorithm_row(row).spec.override(**parts)
    loss, gradient, _, _ = file.run(spec)
    np.testing.assert_allclose(gradient, file.expected["grad_logp_new"], **EXACT)
    np.testing.assert_allclose(loss, file.expected["loss"], **EXACT)
    np.testing.assert_allclose(file.advantages(spec.advantage).values, file.expected["advantages"], **EXACT)


@pytest.mark.parametrize(("name", "row", "parts"), ROWS)
def test_single_precision_agrees_to_a_hundred_thousandth_of_the_largest_entry(golden, name, row, parts):
    file, spec = golden(name), algorithm_row(row).spec.override(**parts)
    values = file.advantages(spec.advantage).values
    batch, totals = file.batch(np.repeat(values[:, None], file.mask.shape[1], axis=1))
    columns = ("logprobs", "old_logprobs", "advantages", "sampler_logprobs")
    single = {n: getattr(batch, n).detach().float() for n in columns if getattr(batch, n) is not None}
    batch = replace(batch, **single)
    batch.logprobs.requires_grad_()
    objective(batch, totals, spec).loss.backward()
    expected = np.array(file.expected["grad_logp_new"])
    gradient = batch.logprobs.grad.numpy().reshape(expected.shape)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["maxrl", "ragged/maxrl"])
def test_maxrl_with_the_official_epsilon(golden, name):
    file = golden(name)
    loss, gradient, _, _ = file.run(algorithm_row("maxrl").spec)
    np.testing.assert_allclose(loss, file.expected["loss_with_official_eps_1e6"], **EXACT)
    np.testing.assert_allclose(gradient, file.expected["grad_logp_new_with_official_eps_1e6"], **EXACT)


def test_clip_cov(golden):
    file, spec = golden("clip_cov"), algorithm_row("clip_cov").spec
    spec = spec.override(
        trust_region=TrustRegion(clip_low=0.2, clip_high=0.2, covariance_low=0.3, covariance_share=1.0)
    )
    values = file.advantages(spec.advantage).values
    batch, totals = file.batch(np.repeat(values[:, None], file.mask.shape[1], axis=1))
    mask = batch.mask.numpy()
    lp, old, a = (x.detach().numpy()[mask] for x in (batch.logprobs, batch.old_logprobs, batch.advantages))
    np.testing.assert_allclose(covariances(lp, a), np.array(file.expected["cov"])[file.mask], **EXACT)
    keys = np.arange(lp.size, dtype=np.uint64)
    chosen = np.zeros(mask.shape, np.bool_)
    chosen[mask] = chosen_by_covariance(lp, lp - old, a, keys, spec.trust_region, seed=0)
    assert np.array_equal(chosen.reshape(file.mask.shape), np.array(file.expected["dropped"]) == 1)
    result = objective(replace(batch, covariance_chosen=torch.tensor(chosen)), totals, spec)
    result.loss.backward()
    np.testing.assert_allclose(result.loss.item(), file.expected["loss"], **EXACT)
    np.testing.assert_allclose(batch.logprobs.grad.reshape(file.mask.shape), file.expected["grad_logp_new"], **EXACT)
    masked = result.statistics.finalize(totals.tokens)["policy/region_masked_share"]
    assert masked == pytest.approx(file.expected["num_dropped"] / totals.tokens)


VARIANTS = {
    "token_tis_C2": Correction(weight="token", high=2.0),
    "token_clip_0.5_2": Correction(weight="token", rule="clip", low=0.5, high=2.0),
    "icepop_0.5_5": Correction(weight="token", rule="mask", low=0.5, high=5.0),
    "token_mis_mask_0.5_2": Correction(weight="token", rule="mask", low=0.5, high=2.0),
    "seq_tis_C2": Correction(weight="sequence", high=2.0),
    "seq_mis_0.5_2": Correction(weight="sequence", rule="mask", low=0.5, high=2.0),
    "geo_rs_0.99_1.01_raw_token_is": Correction(weight="token", high=1e9, reject="geometric"),
    "geo_rs_0.99_1.01_no_is": Correction(reject="geometric"),
    "token_tis_C2_with_veto_1e-4": Correction(weight="token", high=2.0, veto=1e-4),
    "outlier_seq_mask_1e-4_100": Correction(
        weight="token", high=1e9, reject="extreme", reject_low=1e-4, reject_high=100.0
    ),
}


@pytest.mark.parametrize("name", ["mismatch_corrections", "ragged/mismatch_corrections"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_corrections(golden, name, variant):
    file, expected = golden(name), golden(name).expected["variants"][variant]
    spec = algorithm_row("grpo").spec.override(
        aggregation=Aggregation(kind="token_mean"), advantage=Advantage(scale="none"), correction=VARIANTS[variant]
    )
    if not np.allclose(file.advantages(spec.advantage).values, file.expected["advantages"]):
        spec = spec.override(advantage=Advantage(scale="group_std"))
    np.testing.assert_allclose(file.advantages(spec.advantage).values, file.expected["advantages"], **EXACT)
    loss, gradient, statistics, tokens = file.run(spec)
    np.testing.assert_allclose(loss, expected["loss"], **EXACT)
    np.testing.assert_allclose(gradient, expected["grad_logp_new"], **EXACT)
    weights = np.array(expected["weights"])[file.mask]
    values = statistics.finalize(tokens)
    assert values["policy/correction_mean"] == pytest.approx(weights.mean(), abs=1e-9)
    assert values["policy/rejected_share"] == pytest.approx((weights == 0).mean(), abs=1e-9)
    if variant != "seq_mis_0.5_2" or (weights != 0).any():
        kept = loss * tokens / max((weights != 0).sum(), 1)
        assert kept == pytest.approx(expected["loss_if_denominator_is_kept_tokens"], abs=1e-9)


@pytest.mark.parametrize("name", ["mismatch_corrections", "ragged/mismatch_corrections"])
def test_normalised_weights_divide_by_the_mean_over_the_step(golden, name):
    file = golden(name)
    expected = file.expected["variants"]["token_tis_C2_batch_normalised"]
    plain = np.array(file.expected["variants"]["token_tis_C2"]["weights"])[file.mask]
    assert plain.mean() == pytest.approx(expected["norm_factor"], abs=1e-9)
    spec = ObjectiveSpec(correction=Correction(weight="token", high=2.0, normalize=True))
    batch, totals = file.batch(np.ones(file.mask.shape))
    result = objective(batch, replace(totals, correction_mean=float(plain.mean())), spec)
    assert result.statistics.finalize(totals.tokens)["policy/correction_mean"] == pytest.approx(1.0, abs=1e-9)


SPREAD = Advantage(baseline="group_mean", scale="batch_std", std_epsilon=0.0)
ADVANTAGES = [
    ("advantages", "remax", Advantage(baseline="greedy")),
    ("advantages", "opo_length_weighted", Advantage(baseline="length_weighted")),
    ("advantages", "grpo_passk_max_minus_second", Advantage(baseline="second_best")),
    ("advantages", "maxrl", Advantage(scale="group_reward_mean", std_epsilon=0.0)),
    ("advantages", "reinforcepp_token", algorithm_row("reinforce_pp").spec.advantage),
    ("advantages", "reinforcepp_baseline_token", algorithm_row("reinforce_pp_baseline").spec.advantage),
    ("advantages", "batch_std_ddof0", SPREAD.model_copy(update={"std_ddof": 0})),
    ("ragged/advantages", "batch_std_ddof1", SPREAD),
    ("ragged/advantages", "opo_length_weighted", Advantage(baseline="length_weighted")),
    ("ragged/advantages", "maxrl_eps0", Advantage(scale="group_reward_mean", std_epsilon=0.0)),
    ("ragged/advantages", "maxrl_eps1e6", Advantage(scale="group_reward_mean", std_epsilon=1e-6)),
    ("ragged/advantages", "reinforcepp_token", algorithm_row("reinforce_pp").spec.advantage),
    ("ragged/advantages", "reinforcepp_baseline_token", algorithm_row("reinforce_pp_baseline").spec.advantage),
]


@pytest.mark.parametrize(("name", "key", "spec"), ADVANTAGES)
def test_advantages(golden, name, key, spec):
    file = golden(name)
    values, expected = file.advantages(spec).values, np.array(file.expected[key])
    if expected.ndim == 2:
        values = np.where(file.mask, values[:, None], 0.0)
    np.testing.assert_allclose(values, expected, **EXACT)


def test_pass_at_k(golden):
    data = golden("passk_training")
    for row in data.expected["rows"]:
        rewards = np.array([1.0] * row["c"] + [0.0] * (row["n"] - row["c"]))
        spec = Advantage(baseline="pass_at_k", k=row["k"])
        values = sequence_advantages(rewards, ["t"] * row["n"], spec, None, Attempts(successes=rewards == 1)).values
        np.testing.assert_allclose(values[: row["c"]], row["adv_pos"], **EXACT)
        np.testing.assert_allclose(values[row["c"] :], row["adv_neg"], **EXACT)
        assert abs(values.sum()) < 1e-9


def test_anchor_is_not_multiplied_by_the_correction(golden):
    file = golden("mismatch_corrections")
    spec = ObjectiveSpec(correction=Correction(reject="geometric"), anchor=Anchor(weight=1.0, estimator="k2"))
    batch, totals = file.batch(np.zeros(file.mask.shape))
    batch = replace(batch, reference_logprobs=batch.old_logprobs)
    result = objective(batch, totals, spec)
    expected = 0.5 * (batch.logprobs - batch.old_logprobs)[batch.mask] ** 2
    assert result.loss.item() == pytest.approx(expected.mean().item(), abs=1e-12)

"""Sampler against trainer: golden values, merging, and small inputs with known answers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.logprobs.comparison import Comparison, compare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())
MASK = np.array(GOLDEN["inputs"]["mask"]) == 1
SAMPLER = np.array(GOLDEN["inputs"]["logp_rollout"])
TRAINER = np.array(GOLDEN["inputs"]["logp_old"])
SEQUENCE = np.repeat(np.arange(MASK.shape[0]), MASK.shape[1])


def golden_comparison() -> Comparison:
    sampler = np.where(MASK, SAMPLER, np.nan)
    return compare(sampler.ravel(), TRAINER.ravel(), MASK.ravel(), SEQUENCE)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mismatch_mean", "abs_logprob_diff_mean"),
        ("mismatch_k3", "k3_mismatch_kl_rollout_to_train"),
        ("mismatch_exp_mean", "token_mult_prob_error"),
        ("probability_difference_mean", "rollout_probs_diff_mean"),
        ("probability_difference_max", "rollout_probs_diff_max"),
        ("probability_pearson", "pearson_probs"),
        ("ratio_ess", "ess_token_raw_fraction"),
        ("ratio_max", "ratio_max"),
        ("ratio_min", "ratio_min"),
        ("compared_tokens", "tokens"),
    ],
)
def test_golden(name, key):
    assert golden_comparison().finalize()[f"logprobs/{name}"] == pytest.approx(GOLDEN["expected"][key], rel=1e-9)


def test_bias_has_the_sign_of_trainer_minus_sampler():
    expected = -GOLDEN["expected"]["k1_mismatch_kl_rollout_to_train"]
    assert golden_comparison().finalize()["logprobs/mismatch_bias"] == pytest.approx(expected, rel=1e-9)


def test_equal_policies_compare_as_exactly_equal():
    x = np.array([-0.1, -3.0, -20.0], np.float32)
    values = compare(x, x.copy(), np.ones(3, bool)).finalize()
    assert values["logprobs/mismatch_max"] == 0.0
    assert values["logprobs/mismatch_k3"] == 0.0
    assert values["logprobs/ratio_ess"] == 1.0
    assert values["logprobs/probability_pearson"] == pytest.approx(1.0)


def test_first_sampled_token_of_each_sequence():
    """The first *sampled* token, not the first position: prompt tokens come before it."""
    mask = np.array([False, True, True, False, False, True])
    index = np.array([0, 0, 0, 1, 1, 1])
    trainer = np.array([9.0, -1.0, -5.0, 9.0, 9.0, -2.0])
    values = compare(np.full(6, -1.0), trainer, mask, index).finalize()
    assert values["logprobs/first_token_mismatch_mean"] == pytest.approx(0.5)


def test_unmatched_support_shows_as_a_constant_ratio():
    """Logits 2, 1, 0; the sampler keeps the two top tokens: each of its tokens has ratio 0.910 until supports match."""
    logits = np.array([2.0, 1.0, 0.0])
    full = logits - np.log(np.exp(logits).sum())
    top = logits[:2] - np.log(np.exp(logits[:2]).sum())
    unmatched = compare(top, full[:2], np.ones(2, bool)).finalize()
    assert unmatched["logprobs/ratio_max"] == pytest.approx(0.910, abs=5e-4)
    assert unmatched["logprobs/ratio_min"] == pytest.approx(0.910, abs=5e-4)
    assert unmatched["logprobs/mismatch_bias"] == pytest.approx(-0.094, abs=5e-4)
    matched = full[:2] - np.log(np.exp(full[:2]).sum())
    assert compare(top, matched, np.ones(2, bool)).finalize()["logprobs/mismatch_max"] < 1e-12


def test_tokens_that_are_not_finite_are_counted_not_averaged():
    values = compare(np.array([-1.0, -1.0, np.nan]), np.array([-1.5, -np.inf, -1.0]), np.ones(3, bool)).finalize()
    assert values["logprobs/nonfinite_tokens"] == 2
    assert values["logprobs/compared_tokens"] == 1
    assert values["logprobs/mismatch_mean"] == 0.5


def test_extreme_gaps_stay_finite():
    values = compare(np.array([-1e6, 0.0]), np.array([0.0, -1e6]), np.ones(2, bool)).finalize()
    assert all(np.isfinite(list(values.values())))
    assert values["logprobs/mismatch_max"] == 1e6


def test_nothing_compared_reports_nothing_but_the_counts():
    assert compare(np.array([1.0]), np.array([1.0]), np.array([False])).finalize() == {
        "logprobs/compared_tokens": 0.0,
        "logprobs/nonfinite_tokens": 0.0,
    }


def test_shapes_out_of_line_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        compare(np.zeros(2), np.zeros(3), np.ones(2, bool))


@given(st.integers(0, 6), st.integers(0, 6))
def test_any_split_merges_to_the_whole(first, second):
    """Means of unequal parts must not be averaged; maxima must not be added."""
    cuts = [0, *sorted((first, second)), 6]
    merged = Comparison()
    for start, stop in itertools.pairwise(cuts):
        rows = slice(start * 4, stop * 4)
        part = compare(SAMPLER.ravel()[rows], TRAINER.ravel()[rows], MASK.ravel()[rows], SEQUENCE[rows])
        merged = merged + part
    assert merged.finalize() == pytest.approx(golden_comparison().finalize(), rel=1e-12)

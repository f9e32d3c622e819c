"""The teacher's log-probs as advantages: golden loss and gradient, masks, discount, extreme values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import NonFiniteError
from posttrain.policy.distillation import teacher_advantages
from posttrain.policy.objective import objective
from posttrain.settings.objective import Aggregation, ObjectiveSpec, Ratio, TrustRegion

EXACT = {"rtol": 0, "atol": 1e-9}
SPEC = ObjectiveSpec(
    ratio=Ratio(level="token", denominator="sampler"),
    trust_region=TrustRegion(kind="none"),
    aggregation=Aggregation(kind="token_mean"),
)


def advantages_of(file, garbage=float("nan")):
    mask = file.mask
    columns = [np.where(mask, file.data["inputs"][name], garbage) for name in ("logp_rollout", "logp_teacher")]
    rows = np.repeat(np.arange(mask.shape[0]), mask.shape[1])
    return teacher_advantages(columns[0].ravel(), columns[1].ravel(), mask.ravel(), rows).reshape(mask.shape)


def test_golden_reverse_kl(golden):
    """Advantages, and loss and gradient of the importance-sampled surrogate; NaN at every masked token."""
    file = golden("opd_reverse_kl")
    advantages = advantages_of(file)
    np.testing.assert_allclose(advantages, file.expected["advantages"], **EXACT)
    assert -advantages[file.mask].mean() == pytest.approx(file.expected["mean_reverse_kl"], abs=1e-9)
    sampler = torch.where(torch.tensor(file.mask), file.matrix("logp_rollout"), float("nan")).reshape(-1)
    file.data["inputs"]["logp_old"] = file.data["inputs"]["logp_rollout"]
    batch, totals = file.batch(advantages)
    result = objective(replace(batch, sampler_logprobs=sampler), totals, SPEC)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(file.expected["loss"], abs=1e-9)
    np.testing.assert_allclose(batch.logprobs.grad.reshape(file.mask.shape), file.expected["grad_logp_new"], **EXACT)


@given(st.data())
def test_discount_credits_later_gaps_of_the_same_sequence_and_skips_masked_tokens(data):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    discount = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    random = np.random.default_rng(len(rows))
    student, teacher = (np.where(mask, -random.exponential(size=len(rows)), np.nan) for _ in range(2))
    got = teacher_advantages(student, teacher, mask, rows, 2.0, discount)
    for row in range(len(lengths)):
        places = np.flatnonzero(mask & (rows == row))
        for i, place in enumerate(places):
            expected = sum(discount**j * 2.0 * (teacher[p] - student[p]) for j, p in enumerate(places[i:]))
            assert got[place] == pytest.approx(expected, abs=1e-9)
    assert (got[~mask] == 0).all()


def test_a_token_the_teacher_rules_out_is_finite_and_an_unscored_one_is_named():
    mask, rows = np.array([True, True]), np.zeros(2, int)
    student = np.array([-0.5, -0.5], np.float32)
    ruled_out = teacher_advantages(student, np.array([-np.inf, -0.25], np.float32), mask, rows)
    assert ruled_out.tolist() == [-999.5, 0.25]
    with pytest.raises(NonFiniteError, match=r"token 1 has log-prob .* by the student and nan by the teacher"):
        teacher_advantages(student, np.array([-1.0, np.nan], np.float32), mask, rows)


def test_expected_gradient_is_that_of_the_reverse_kl(golden):
    """Every token of a vocabulary of four, weighted by its probability."""
    exact = golden("kl_estimators").expected["exact_vocab4"]
    p, teacher = np.array(exact["probs"]), np.array(exact["ref_probs"])
    values = teacher_advantages(np.log(p), np.log(teacher), np.ones(4, bool), np.arange(4))
    np.testing.assert_allclose(-(p * values) @ (np.eye(4) - p), exact["grad_reverse_kl"], **EXACT)

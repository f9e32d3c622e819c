"""Advantages: golden values, exact zeros, explicit groups, members without a reward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.errors import NonFiniteError
from posttrain.policy.advantages import sequence_advantages
from posttrain.settings.objective import Advantage, ObjectiveSpec

CENTRED = Advantage(baseline="group_mean", scale="none")
LOO = Advantage(baseline="leave_one_out", scale="none")
GRPO = Advantage(baseline="group_mean", scale="group_std")


@pytest.mark.parametrize("name", ["advantages", "ragged/advantages"])
def test_golden(golden, name):
    file = golden(name)
    specs = {
        "grpo_ddof1_eps1e6": GRPO,
        "grpo_ddof0_eps1e6": Advantage(scale="group_std", std_ddof=0),
        "grpo_ddof1_eps1e4": Advantage(scale="group_std", std_epsilon=1e-4),
        "dr_grpo": CENTRED,
        "rloo": LOO,
        "batch_std_ddof0": Advantage(scale="batch_std", std_ddof=0, std_epsilon=0.0),
        "batch_std_ddof1": Advantage(scale="batch_std", std_ddof=1, std_epsilon=0.0),
        "group_mean": CENTRED,
        "group_mean_std_ddof0_eps1e6": Advantage(scale="group_std", std_ddof=0),
        "group_mean_std_ddof1_eps1e6": GRPO,
        "group_mean_std_ddof1_eps1e4": Advantage(scale="group_std", std_epsilon=1e-4),
        "leave_one_out": LOO,
    }
    checked = [key for key in file.expected if key in specs]
    assert len(checked) >= 6
    for key in checked:
        got = file.advantages(specs[key]).values
        np.testing.assert_allclose(got, file.expected[key], rtol=0, atol=1e-9, err_msg=key)


def test_groups_are_not_normalised_over_the_batch():
    rewards = np.array([0, 1, 1, 0, 3, 3, 3, 1, 0, 0, 0], float)
    ids = ["a"] * 4 + ["b"] * 3 + ["c"] * 4
    got = sequence_advantages(rewards, ids, CENTRED).values
    assert got.tolist() == [-0.5, 0.5, 0.5, -0.5, 0, 0, 0, 0.75, -0.25, -0.25, -0.25]


def test_interleaved_prompts_are_not_paired_with_their_neighbours():
    got = sequence_advantages(np.array([1.0, 0.0, 1.0, 0.0]), ["a", "b", "a", "b"], LOO).values
    assert got.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_one_winner_of_four_stays_bounded(baseline):
    spec = Advantage(baseline=baseline, scale="group_std", std_epsilon=1e-6)
    assert np.abs(sequence_advantages(np.array([1.0, 0, 0, 0]), [0] * 4, spec).values).max() < 2 * np.sqrt(4)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_equal_rewards_give_exactly_zero(baseline, scale, epsilon):
    """0.35 seven times has a mean that is not 0.35 in binary; a std of rounding noise must not be divided by."""
    spec = Advantage(baseline=baseline, scale=scale, std_epsilon=epsilon)
    rewards = np.array([0.35] * 7 + [0.1 + 0.2] * 3 + [1.0, 0.0])
    got = sequence_advantages(rewards, [0] * 7 + [1] * 3 + [2] * 2, spec).values
    assert np.all(got[:10] == 0)
    assert np.all(got[10:] != 0)
    assert np.isfinite(got).all()


def test_a_member_without_a_reward_enters_nothing():
    """As 0 it would lower the baseline; as NaN it would poison the group."""
    valid = np.array([True, True, False])
    with_it = sequence_advantages(np.array([1.0, 0.0, np.nan]), [7, 7, 7], GRPO, valid)
    without = sequence_advantages(np.array([1.0, 0.0]), [7, 7], GRPO)
    assert with_it.values[:2].tolist() == without.values.tolist()
    assert with_it.values[2] == 0


@pytest.mark.parametrize("spec", [CENTRED, LOO, GRPO])
def test_a_lone_member_has_no_baseline(spec):
    got = sequence_advantages(np.array([1.0, 1.0, 0.0]), [1, 2, 2], spec, np.array([True, True, True])).values
    assert got[0] == 0
    assert got[1] > 0


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(NonFiniteError, match="row 1"):
        sequence_advantages(np.array([1.0, np.nan]), [0, 0], CENTRED)


def test_without_baseline_equal_rewards_still_push():
    assert sequence_advantages(np.array([1.0, 1.0]), [0, 0], Advantage(baseline="none")).values.tolist() == [1, 1]


def test_scaling_without_a_baseline_is_refused():
    with pytest.raises(ValidationError, match="baseline"):
        ObjectiveSpec(advantage=Advantage(baseline="none", scale="group_std"))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 1.0, -1.0])), min_size=2, max_size=20),
    st.sampled_from([CENTRED, LOO, GRPO, Advantage(scale="batch_std", std_ddof=0)]),
    st.randoms(use_true_random=False),
)
def test_row_order_changes_nothing_and_groups_sum_to_zero(rows, spec, random):
    ids, rewards = [f"task-{i}" for i, _ in rows], np.array([r for _, r in rows])
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = sequence_advantages(rewards, ids, spec).values
    shuffled = sequence_advantages(rewards[order], [ids[i] for i in order], spec).values
    np.testing.assert_allclose(shuffled, plain[order], rtol=0, atol=1e-12)
    for name in set(ids):
        assert abs(sum(a for a, i in zip(plain, ids, strict=True) if i == name)) < 1e-9

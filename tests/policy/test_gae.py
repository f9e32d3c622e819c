"""Generalised advantages: golden, against a slow definition, and under everything that must change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import InputError, NonFiniteError
from posttrain.policy.advantages import whiten
from posttrain.policy.gae import explained_variance, generalised_advantages

EXACT = {"rtol": 0, "atol": 1e-12}


def flat(golden_file, name, garbage=np.nan):
    values = np.array(golden_file.data["inputs"][name], np.float64)
    return np.where(golden_file.mask, values, garbage).reshape(-1)


def starts(mask):
    return np.arange(mask.shape[0] + 1) * mask.shape[1]


def test_golden_skips_the_tool_token_and_returns_come_before_whitening(golden):
    file = golden("ppo_gae_dualclip")
    mask = file.mask
    got = generalised_advantages(
        flat(file, "token_rewards", 0.0),
        flat(file, "values_old"),
        mask.reshape(-1),
        starts(mask),
        gamma=file.data["config"]["gamma"],
        gae_lambda=file.data["config"]["lam"],
    )
    np.testing.assert_allclose(got.advantages.reshape(mask.shape), file.expected["advantages"], **EXACT)
    np.testing.assert_allclose(got.returns.reshape(mask.shape), file.expected["returns"], **EXACT)
    inside = mask.reshape(-1)
    whitened = whiten(got.advantages[inside], np.ones(inside.sum()), 1, 1e-8)
    np.testing.assert_allclose(whitened, np.array(file.expected["whitened_advantages"])[mask], rtol=0, atol=1e-7)


@st.composite
def batches(draw):
    """Rows of any length with any mask, fully masked ones included; NaN values where nothing is trained."""
    masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6))
    mask = np.concatenate([np.array(m) for m in masks])
    number = st.floats(-5, 5, allow_subnormal=False)
    size = len(mask)
    values = np.array(draw(st.lists(number, min_size=size, max_size=size)))
    rewards = np.array(draw(st.lists(number, min_size=size, max_size=size)))
    after = np.array(draw(st.lists(number, min_size=len(masks), max_size=len(masks))))
    gamma, gae_lambda = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    start = np.concatenate([[0], np.cumsum([len(m) for m in masks])])
    return np.where(mask, rewards, 0.0), np.where(mask, values, np.nan), mask, start, gamma, gae_lambda, after


@given(batches())
def test_equals_the_discounted_sum_of_temporal_differences(batch):
    """A_t = sum_k (gamma lambda)^k d_{t+k}, summed directly over the trained tokens of each row."""
    rewards, values, mask, start, gamma, gae_lambda, after = batch
    got = generalised_advantages(rewards, values, mask, start, gamma=gamma, gae_lambda=gae_lambda, next_values=after)
    for row in range(len(start) - 1):
        tokens = [t for t in range(start[row], start[row + 1]) if mask[t]]
        v = [*values[tokens], after[row]]
        d = [rewards[t] + gamma * v[i + 1] - v[i] for i, t in enumerate(tokens)]
        for i, t in enumerate(tokens):
            want = sum((gamma * gae_lambda) ** (k - i) * d[k] for k in range(i, len(d)))
            assert got.advantages[t] == pytest.approx(want, abs=1e-9)
            assert got.returns[t] == pytest.approx(want + values[t], abs=1e-9)
    assert not got.advantages[~mask].any()
    assert not got.returns[~mask].any()


@given(batches())
def test_with_lambda_and_gamma_one_the_return_is_the_reward_to_go(batch):
    rewards, values, mask, start, _, _, after = batch
    got = generalised_advantages(rewards, values, mask, start, next_values=after)
    for row in range(len(start) - 1):
        part = slice(start[row], start[row + 1])
        to_go = np.cumsum(rewards[part][::-1])[::-1] + after[row]
        np.testing.assert_allclose(got.returns[part][mask[part]], to_go[mask[part]], atol=1e-9)


@given(batches(), st.integers(0, 2**32 - 1))
def test_tool_tokens_row_order_and_padding_change_nothing(batch, seed):
    """Inserting masked tokens anywhere, and permuting the rows, moves no trained token's numbers by one bit."""
    rewards, values, mask, start, gamma, gae_lambda, after = batch
    base = generalised_advantages(rewards, values, mask, start, gamma=gamma, gae_lambda=gae_lambda, next_values=after)
    random = np.random.default_rng(seed)
    order = random.permutation(len(start) - 1)
    pieces, sources = [], []
    for row in order:
        at = np.repeat(np.arange(start[row], start[row + 1]), random.integers(1, 4, start[row + 1] - start[row]))
        # Repeats of a token are tool tokens: only its last copy is kept as it was.
        kept = np.append(at[1:] != at[:-1], True)
        pieces.append(np.where(kept, at, -1))
        sources.append(len(at))
    source = np.concatenate(pieces)
    wide = lambda x, fill: np.where(source >= 0, x[source], fill)  # noqa: E731
    got = generalised_advantages(
        wide(rewards, 0.0),
        wide(values, np.inf),
        wide(mask, False).astype(bool),
        np.concatenate([[0], np.cumsum(sources)]),
        gamma=gamma,
        gae_lambda=gae_lambda,
        next_values=after[order],
    )
    kept = source >= 0
    np.testing.assert_array_equal(got.advantages[kept], base.advantages[source[kept]])
    np.testing.assert_array_equal(got.returns[kept], base.returns[source[kept]])


def test_a_cut_off_answer_goes_on_with_the_value_of_its_next_state():
    mask, start = np.array([True, True]), np.array([0, 2])
    ended = generalised_advantages(np.array([0.0, 1.0]), np.array([0.5, 0.6]), mask, start)
    cut = generalised_advantages(
        np.array([0.0, 1.0]), np.array([0.5, 0.6]), mask, start, gamma=0.5, next_values=np.array([0.8])
    )
    assert ended.returns == pytest.approx([1.0, 1.0])
    assert cut.returns == pytest.approx([0.5 * 1.4, 1.4])


def test_a_single_row_and_a_fully_masked_one():
    mask, start = np.array([False, False, True]), np.array([0, 2, 3])
    got = generalised_advantages(np.array([0.0, 0.0, 2.0]), np.array([np.nan, np.inf, 0.5]), mask, start)
    assert got.advantages.tolist() == [0.0, 0.0, 1.5]
    none = generalised_advantages(np.zeros(2), np.full(2, np.nan), np.zeros(2, bool), np.array([0, 2]))
    assert none.advantages.tolist() == [0.0, 0.0]
    empty = generalised_advantages(np.zeros(0), np.zeros(0), np.zeros(0, bool), np.array([0]))
    assert empty.returns.size == 0


@pytest.mark.parametrize("what", ["reward", "value"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_row(what, bad):
    rewards, values = np.zeros(4), np.zeros(4)
    (rewards if what == "reward" else values)[2] = bad
    with pytest.raises(NonFiniteError, match=f"the {what} of a token of row 1"):
        generalised_advantages(rewards, values, np.ones(4, bool), np.array([0, 2, 4]))
    after = np.array([0.0, bad])
    with pytest.raises(NonFiniteError, match="value after the last token of row 1"):
        generalised_advantages(np.zeros(4), np.zeros(4), np.ones(4, bool), np.array([0, 2, 4]), next_values=after)


@pytest.mark.parametrize("lost", [1.0, np.nan])
def test_a_reward_that_no_advantage_could_carry_is_refused(lost):
    with pytest.raises(InputError, match="token 1 is not trained"):
        generalised_advantages(np.array([0.0, lost]), np.zeros(2), np.array([True, False]), np.array([0, 2]))


def test_explained_variance_at_its_marks():
    returns, mask = np.array([0.0, 1.0, 1.0, 9.0]), np.array([True, True, True, False])
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert explained_variance(np.full(4, 0.3), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, np.ones(4), mask) is None
    assert explained_variance(returns, returns, np.zeros(4, bool)) is None

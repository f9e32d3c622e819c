"""Statistics of the objective and of the groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.policy.advantages import sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.filters import is_mixed, kept_sequences
from posttrain.policy.group_statistics import SUCCESS_BINS, group_statistics
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Advantage, GroupFilter


def test_ratio_statistics_by_hand():
    ratios = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    old = torch.full((4,), -2.0, dtype=torch.float64)
    batch = TokenBatch(
        old + ratios.log(),
        old,
        torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        torch.ones(4, dtype=torch.bool),
        torch.zeros(4, dtype=torch.int64),
        entropies=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        reference_logprobs=old,
    )
    totals = step_totals(torch.tensor([4]), torch.tensor([0]))
    values = objective(batch, totals, algorithm_row("grpo").spec).statistics.finalize(totals.tokens)
    assert values["policy/clip_fraction_high"] == 0.25  # ratio 2 with A > 0
    assert values["policy/clip_fraction_low"] == 0.0  # ratio 0.5, but A > 0: the clip lets it come back
    assert values["policy/out_of_bounds_share"] == 0.5
    assert values["policy/gradient_token_share"] == 0.5
    assert values["policy/ratio_ess"] == pytest.approx(4.5**2 / (4 * 6.25))
    assert (values["policy/ratio_max"], values["policy/ratio_min"]) == (pytest.approx(2.0), pytest.approx(0.5))
    assert values["policy/entropy"] == 2.5
    expected_kl = np.mean([r - 1 - np.log(r) for r in ratios.tolist()])
    assert values["policy/approx_kl"] == pytest.approx(expected_kl)
    assert values["policy/anchor_kl"] == pytest.approx(np.mean([1 / r - 1 + np.log(r) for r in ratios.tolist()]))


def test_what_nobody_measured_is_absent():
    batch = TokenBatch(
        torch.zeros(1), torch.zeros(1), torch.ones(1), torch.ones(1, dtype=torch.bool), torch.zeros(1).long()
    )
    totals = step_totals(torch.tensor([1]), torch.tensor([0]))
    values = objective(batch, totals, algorithm_row("grpo").spec).statistics.finalize(1)
    assert "policy/entropy" not in values
    assert "policy/anchor_kl" not in values


GRPO = Advantage(scale="group_std")


def test_where_the_gradient_comes_from():
    """One of four right, and a group in which all fail but for a length term: the std makes both equally loud."""
    rewards = np.array([1.0, 0, 0, 0, -0.08, -0.06, -0.04, -0.02])
    successes = rewards >= 1.0
    tokens = np.full(8, 10)
    advantages = sequence_advantages(rewards, [0] * 4 + [1] * 4, GRPO)
    statistics = group_statistics(rewards, successes, tokens, advantages)
    values = statistics.finalize()
    assert values["reward/all_fail_spread_groups"] == 0.5
    assert values["reward/zero_variance_groups"] == 0.0
    assert values["policy/success_token_share"] == pytest.approx(1 / 8)
    assert values["policy/advantage_token_share"] == 1.0
    assert values["policy/advantage_share/0"] > 0.5
    assert values["policy/advantage_share_unscaled/0"] == pytest.approx(0.08 / 1.58)
    assert values["policy/advantage_share/0-25"] == pytest.approx(1 - values["policy/advantage_share/0"])
    assert values["policy/advantage_abs_max"] == pytest.approx(1.5, abs=1e-4)
    assert values["policy/advantage_group_mean_max"] < 1e-9


def test_success_bins_have_exact_edges():
    rewards, ids = [], []
    for group, wins in enumerate((0, 1, 2, 3, 4, 5, 6, 7, 8)):
        rewards += [1.0] * wins + [0.0] * (8 - wins)
        ids += [group] * 8
    rewards = np.array(rewards)
    advantages = sequence_advantages(rewards, ids, Advantage(scale="none", baseline="none"))
    statistics = group_statistics(rewards, rewards == 1, np.ones(72, int), advantages)
    # Without a baseline a group of w wins has mass w: 1+2, 3+4, 5+6, 7, 8.
    assert statistics.bin_mass.tolist() == [0, 3, 7, 11, 7, 8]
    assert len(SUCCESS_BINS) == 6


def test_members_without_a_reward_count_nowhere():
    rewards = np.array([1.0, 1.0, np.nan, np.nan])
    valid = np.array([True, True, False, False])
    advantages = sequence_advantages(rewards, ["a", "a", "a", "b"], GRPO, valid)
    values = group_statistics(rewards, np.array([True, True, True, True]), np.full(4, 5), advantages).finalize()
    assert values["reward/zero_variance_groups"] == 1.0
    assert values["reward/small_groups"] == 1.0
    assert values["policy/success_token_share"] == 1.0
    assert "policy/advantage_share/0" not in values


def test_parts_of_a_batch_add_up():
    rng = np.random.default_rng(0)
    rewards, ids = rng.integers(0, 2, 24).astype(float), np.repeat(np.arange(6), 4)
    tokens = rng.integers(1, 30, 24)

    def part(rows: slice):
        advantages = sequence_advantages(rewards[rows], ids[rows], GRPO)
        return group_statistics(rewards[rows], rewards[rows] == 1, tokens[rows], advantages)

    whole, split = part(slice(None)).finalize(), (part(slice(0, 8)) + part(slice(8, 24))).finalize()
    assert whole == pytest.approx(split)


def test_all_wrong_group_with_a_length_term_is_dropped_by_the_success_filter():
    lengths = np.array([80, 60, 40, 20])
    rewards = -0.001 * lengths
    # What the filter is for: the group std turns a spread of 0.06 into full-size advantages.
    assert sequence_advantages(rewards, [0] * 4, GRPO).values.max() > 1.1
    kept = kept_sequences(rewards >= 1.0, [0] * 4, GroupFilter(rule="mixed_success"), np.ones(4, bool))
    assert not kept.any()


def test_one_loser_among_eight_keeps_or_drops_all():
    successes = np.array([False] + [True] * 7)
    kept = kept_sequences(successes, [3] * 8, GroupFilter(rule="mixed_success"), np.ones(8, bool))
    assert kept.all()
    uniform = kept_sequences(np.ones(8, bool), [3] * 8, GroupFilter(rule="mixed_success"), np.ones(8, bool))
    assert not uniform.any()


def test_ungradable_members_decide_nothing():
    """Seven right and one that could not be graded is not a mixed group."""
    valid = np.array([True] * 7 + [False])
    successes = np.array([True] * 7 + [False])
    assert not kept_sequences(successes, [0] * 8, GroupFilter(rule="mixed_success"), valid).any()
    assert not is_mixed(successes[valid])


def test_golden_keep_rule(golden):
    file = golden("dapo_soft_overlong")
    for rewards, keep in zip(file.data["inputs"]["groups_rewards"], file.expected["keep_group"], strict=True):
        assert is_mixed(np.array(rewards) == 1) is keep


def test_no_filter_keeps_everything():
    assert kept_sequences(np.zeros(3, bool), [0, 1, 2], GroupFilter(), np.ones(3, bool)).all()

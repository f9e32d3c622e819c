"""Formulas without a golden vector against numbers worked out by hand, and against their stated gradient weights."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt, tanh

import numpy as np
import pytest

from . import advantages as adv
from . import corrections, critic, distillation, preference, rows
from . import token_losses as tok
from .arrays import Batch, clamp_log_ratio, evaluate

NAN = float("nan")
# Two rows of one group, lengths 2 and 1 (row 1 has garbage behind its token), and a fully masked row.
MASK = np.array([[True, True], [True, False], [False, False]])
R = np.array([[1.5, 0.5], [2.0, NAN], [NAN, NAN]])  # pi / pi_old
W = np.array([[1.25, 0.8], [3.0, NAN], [NAN, NAN]])  # pi_old / mu
OLD = np.log(np.array([[0.4, 0.5], [0.2, NAN], [NAN, NAN]]))
BATCH = Batch(
    logp_new=OLD + np.log(R),
    mask=MASK,
    logp_old=OLD,
    logp_rollout=OLD - np.log(W),
    logp_ref=np.log(np.array([[0.3, 0.5], [0.4, NAN], [NAN, NAN]])),
    rewards=np.array([1.0, -1.0, NAN]),
    group_ids=np.array([7, 7, 7]),
)
A = np.array([2.0, -1.0, NAN])


def grad(loss: rows.Loss, batch: Batch = BATCH) -> tuple[float, np.ndarray]:
    return evaluate(loss, batch)


def same(got: np.ndarray, expected: list[list[float]]) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


def test_kl_in_reward_reaches_only_earlier_tokens() -> None:
    k1 = np.array([[0.1, -0.3], [0.5, NAN], [NAN, NAN]])
    reward = adv.token_rewards(np.array([1.0, 0.0, NAN]), MASK, k1, beta=0.5)
    same(reward, [[-0.05, 1.15], [-0.25, 0], [0, 0]])
    same(adv.return_to_go(reward, MASK), [[1.1, 1.15], [-0.25, 0], [0, 0]])
    centre = 2.0 / 3
    spread = sqrt(((1.1 - centre) ** 2 + (1.15 - centre) ** 2 + (-0.25 - centre) ** 2) / 2 + 1e-8)
    got = adv.reinforce_plus_plus(np.array([1.0, 0.0, NAN]), MASK, k1, beta=0.5)
    same(got, [[(1.1 - centre) / spread, (1.15 - centre) / spread], [(-0.25 - centre) / spread, 0], [0, 0]])


def test_gspo_token() -> None:
    # Row 0: s = sqrt(1.5 * 0.5) = 0.866 < 1 - 3e-4 and A > 0: alive. Row 1: s = 2, A < 0: alive.
    s = sqrt(0.75)
    value, slope = grad(rows.gspo_token(BATCH, A))
    assert value == pytest.approx((-2 * s + 2) / 2)
    same(slope, [[-2 * s / 4, -2 * s / 4], [2 / 2, 0], [0, 0]])
    # Advantages that differ inside a row: only the token on the wrong side of the bound loses its gradient.
    mixed = np.array([[2.0, -1.0], [1.0, NAN], [NAN, NAN]])
    value, slope = grad(rows.gspo_token(BATCH, mixed))
    same(slope, [[-2 * s / 4, 0], [0, 0], [0, 0]])
    assert value == pytest.approx(((-2 * s + (1 - 3e-4)) / 2 - (1 + 4e-4)) / 2)


def test_gmpo_clips_the_log_ratio_on_the_side_of_the_sign() -> None:
    # Row 0, A > 0: log 1.5 = 0.405 is cut at 0.4, log 0.5 = -0.69 is left. Row 1, A < 0: log 2 > 0.4 is left.
    s = exp((0.4 + log(0.5)) / 2)
    value, slope = grad(rows.gmpo(BATCH, A))
    assert value == pytest.approx((-2 * s + 2) / 2)
    same(slope, [[0, -2 * s / 2 / 2], [2 / 2, 0], [0, 0]])


def test_sapo() -> None:
    value, slope = grad(rows.sapo(BATCH, A))

    def g(r: float, tau: float) -> float:
        return r * (1 - tanh(tau * (r - 1) / 2) ** 2)

    same(slope, [[-2 * g(1.5, 1) / 4, -2 * g(0.5, 1) / 4], [g(2, 1.05) / 2, 0], [0, 0]])
    first = -8 * (1 / (1 + exp(-0.5)) + 1 / (1 + exp(0.5))) / 2
    assert value == pytest.approx((first + 4 / 1.05 / (1 + exp(-1.05))) / 2)


def test_kl_cov() -> None:
    cov = tok.covariance(BATCH.logp_new, rows.token_advantage(BATCH, A, "raw"), MASK)
    lp = np.array([log(0.6), log(0.25), log(0.4)])
    same(cov, [[lp[0] - lp.mean(), lp[1] - lp.mean()], [-2 * (lp[2] - lp.mean()), 0], [0, 0]])
    value, slope = grad(rows.kl_cov(BATCH, 1, A, coefficient=0.7))
    same(slope, [[(-3 + 0.7) / 3, -1 / 3], [2 / 3, 0], [0, 0]])
    assert value == pytest.approx((-3 - 1 + 2 + 0.7 * log(1.5)) / 3)


def test_clip_cov_leaves_the_denominator() -> None:
    value, slope = grad(rows.clip_cov(BATCH, {(1, 0)}, A))
    assert value == pytest.approx((-2 * 1.2 - 2 * 0.5) / 3)
    same(slope, [[0, -1 / 3], [0, 0], [0, 0]])


def test_topr_keeps_positives_and_fades_negatives() -> None:
    lp = BATCH.logp_new
    value, slope = grad(rows.topr(BATCH))
    # Row 1: pi / mu = 2 * 3 > 1, so its weight is held at 1.
    same(slope, [[-0.5, -0.5], [0.5, 0], [0, 0]])
    assert value == pytest.approx((-(lp[0, 0] + lp[0, 1]) + lp[1, 0]) / 2)
    likelier = replace(BATCH, logp_rollout=BATCH.logp_new - log(0.25), rewards=np.array([1.0, -3.0, NAN]))
    same(grad(rows.topr(likelier), likelier)[1], [[-0.5, -0.5], [0.25 * 3 / 2, 0], [0, 0]])
    both = replace(likelier, rewards=np.array([-1.0, 0.0, NAN]))
    same(grad(rows.topr(both), both)[1], [[0.0625 / 2, 0.0625 / 2], [0, 0], [0, 0]])


def test_scalerl_and_aipo_cap_the_ratio_to_the_sampler() -> None:
    rho = R * W  # 1.875, 0.4 | 6
    # Centred rewards 1, -1; population std 1. Prompt average over one prompt of 3 tokens.
    same(grad(rows.scalerl(BATCH, cap=1.5))[1], [[-1.5 / 3, -rho[0, 1] / 3], [1.5 / 3, 0], [0, 0]])
    same(grad(rows.aipo(BATCH, cap=5.0))[1], [[-rho[0, 0] / 3, -rho[0, 1] / 3], [5 / 3, 0], [0, 0]])


def test_scalerl_gives_each_prompt_the_same_share_and_one_scale() -> None:
    # Prompt 1: rewards 1, 0, lengths 2, 1. Prompt 2: rewards 4, 0, lengths 1, 1. Centred +-0.5, +-2, sampler on policy.
    mask = np.array([[True, True], [True, False], [True, False], [True, False]])
    logp = np.full((4, 2), -1.0)
    batch = Batch(
        logp, mask, logp_rollout=logp, rewards=np.array([1.0, 0.0, 4.0, 0.0]), group_ids=np.array([1, 1, 2, 2])
    )
    scale = sqrt((0.25 + 4) / 2)
    one, two = 0.5 / scale / 3 / 2, 2 / scale / 2 / 2
    same(grad(rows.scalerl(batch), batch)[1], [[-one, -one], [one, 0], [-two, 0], [two, 0]])


def test_prime_rl() -> None:
    # pi 0.6 0.25 | 0.4; mu 0.32 0.625 | 0.0667; d 0.28 -0.375 | 0.333; A 1 1 | -1: only the first is dropped.
    value, slope = grad(rows.prime_rl(BATCH))
    x = np.log(R * W)
    same(
        slope,
        [[2e-3 * x[0, 0] / 3, (-0.4 + 2e-3 * x[0, 1]) / 3], [(6 + 2e-3 * x[1, 0]) / 3, 0], [0, 0]],
    )
    assert value == pytest.approx((-0.4 + 6 + 1e-3 * (x[0, 0] ** 2 + x[0, 1] ** 2 + x[1, 0] ** 2)) / 3)
    # ipo is symmetric: all three are out of bound 0.1, the pull to rho = 1 stays.
    same(
        grad(rows.prime_rl(BATCH, kind="ipo"))[1],
        [[2e-3 * x[0, 0] / 3, 2e-3 * x[0, 1] / 3], [2e-3 * x[1, 0] / 3, 0], [0, 0]],
    )
    # A of exactly 0 belongs to the negative side.
    zero = tok.prime_rl(BATCH.logp_new, BATCH.logp_new, BATCH.logp_rollout, np.zeros((3, 2)), MASK, tau=0.0)
    same(zero, [[0, 0], [0, 0], [0, 0]])


def test_dppo_binary_kl() -> None:
    q, p = 0.32, 0.6
    first = q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))
    assert tok.binary_divergence("kl", log(p), log(q)) == pytest.approx(first)
    # rho 1.875 (A > 0, away, KL 0.16), 0.4 (A > 0, moving back), 6 (A < 0, moving back).
    value, slope = grad(rows.dppo(BATCH, A, delta=0.05, cap=5.0, constant=2.0))
    same(slope, [[0, -2 * 0.4 / 4], [5 / 4, 0], [0, 0]])
    assert value == pytest.approx((-2 * 0.4 * log(0.25) + 5 * log(0.4)) / 4)
    same(
        grad(rows.dppo(BATCH, A, delta=first + 1e-6, cap=5.0, constant=2.0))[1],
        [[-2 * 1.875 / 4, -0.2], [1.25, 0], [0, 0]],
    )


def test_opsm_drops_negative_rows_the_policy_left() -> None:
    # Row 1: mean(log mu - log pi) = log(0.0667 / 0.4) < 0: kept. With a sampler that found it likelier: dropped.
    args = (MASK, A)
    same(corrections.opsm_keep(BATCH.logp_new, BATCH.logp_rollout, *args, 0.5), [[1, 1], [1, 0], [0, 0]])
    likelier = BATCH.logp_new + 0.6
    same(corrections.opsm_keep(BATCH.logp_new, likelier, *args, 0.5), [[1, 1], [0, 0], [0, 0]])


def test_trpo_penalty_and_beta() -> None:
    value, slope = grad(rows.trpo(BATCH, A, beta=0.5))
    same(slope, [[(-3 + 0.5 * 0.5) / 3, (-1 - 0.5 * 0.5) / 3], [(2 + 0.5 * 1) / 3, 0], [0, 0]])
    k3 = (0.5 - log(1.5)) + (-0.5 - log(0.5)) + (1 - log(2))
    assert value == pytest.approx((-3 - 1 + 2 + 0.5 * k3) / 3)
    assert [rows.adapt_beta(2.0, kl, 0.03) for kl in (0.0451, 0.0449, 0.021, 0.0199)] == [4.0, 2.0, 2.0, 1.0]


def test_second_best_ties_and_std() -> None:
    groups, mask = np.array([0, 0, 0, 1, 1, 2]), np.ones((6, 1), dtype=bool)
    rewards = np.array([0.2, 0.9, 0.5, 1.0, 1.0, 5.0])
    same(adv.second_best(rewards, groups, mask), [0, 0.4, 0, 0, 0, 0])
    got = adv.second_best(rewards, groups, mask, divide_by_std=True)
    assert got[1] == pytest.approx(0.4 / (np.std([0.2, 0.9, 0.5], ddof=1) + 1e-6))


def test_gdpo_gives_a_small_part_the_weight_of_a_large_one() -> None:
    parts = np.array([[1.0, 0.0], [0.0, 100.0], [1.0, 100.0], [0.0, 0.0]])
    groups, mask = np.zeros(4, dtype=np.int64), np.ones((4, 2), dtype=bool)
    got = adv.gdpo(parts, [1.0, 1.0], groups, mask, eps=0.0)
    scale = sqrt(1.5)
    same(got, [0, 0, scale, -scale])
    tokens = adv.gdpo(parts, [1.0, 0.5], groups, mask, eps=0.0, over="tokens")
    assert tokens.shape == (4, 2)
    assert tokens.mean() == pytest.approx(0)
    assert tokens.std(ddof=1) == pytest.approx(1)
    assert tokens[0, 0] == pytest.approx(-tokens[1, 0])


def test_opo_weighs_the_baseline_by_length() -> None:
    same(adv.opo(BATCH.rewards, BATCH.group_ids, MASK), [1 - 1 / 3, -1 - 1 / 3, 0])


def test_decoupled_cap_and_clamp() -> None:
    same(grad(rows.decoupled(BATCH, A, cap=2.0))[1], [[0, -2 * 0.5 * 0.8 / 3], [2 * 2 / 3, 0], [0, 0]])
    near = clamp_log_ratio(np.array([[90.0, -90.0, 1.0]]), np.zeros((1, 3)), 20.0)
    same(near, [[20, -20, 1]])


def test_row_rejection() -> None:
    old, mu = BATCH.logp_old, BATCH.logp_rollout
    # Row 0: product 1, geometric mean 1; row 1: 3.
    same(corrections.geometric_keep(old, mu, MASK, 0.99, 1.01), [[1, 1], [0, 0], [0, 0]])
    k3 = ((1.25 - 1 - log(1.25)) + (0.8 - 1 - log(0.8))) / 2
    same(corrections.divergence_keep(old, mu, MASK, "k3", k3 + 1e-9), [[1, 1], [0, 0], [0, 0]])
    same(corrections.divergence_keep(old, mu, MASK, "k3", k3 - 1e-9), [[0, 0], [0, 0], [0, 0]])
    same(corrections.divergence_keep(old, mu, MASK, "k2", log(1.25) ** 2 / 2 + 1e-9), [[1, 1], [0, 0], [0, 0]])


def test_a_product_too_large_for_a_float_is_capped_or_rejected() -> None:
    mask, far = np.ones((1, 9), dtype=bool), np.full((1, 9), 89.0)
    same(corrections.sequence_truncated(far, np.zeros((1, 9)), mask, 5.0), [[5.0] * 9])
    same(corrections.sequence_masked(far, np.zeros((1, 9)), mask, 0.5, 5.0), [[0.0] * 9])
    same(corrections.sequence_truncated(-far, np.zeros((1, 9)), mask, 5.0), [[0.0] * 9])


def test_gae_steps_over_tool_tokens() -> None:
    mask = np.array([[True, False, False, True, True]])
    rewards, values = np.array([[0.0, NAN, NAN, 0.5, 1.0]]), np.array([[0.2, NAN, NAN, 0.4, 0.6]])
    advantages, returns = critic.gae(rewards, values, mask, gamma=0.9, lam=0.8)
    last = 1.0 - 0.6
    middle = 0.5 + 0.9 * 0.6 - 0.4 + 0.72 * last
    first = 0.9 * 0.4 - 0.2 + 0.72 * middle
    same(advantages, [[first, 0, 0, middle, last]])
    same(returns, [[first + 0.2, 0, 0, middle + 0.4, 1.0]])
    bootstrapped, _ = critic.gae(rewards, values, mask, 0.9, 0.8, last_value=np.array([2.0]))
    assert bootstrapped[0, 4] == pytest.approx(last + 1.8)


def test_explained_variance() -> None:
    mask, returns = np.array([[True, True, False]]), np.array([[0.0, 2.0, NAN]])
    assert critic.explained_variance(returns + 5, returns, mask) == pytest.approx(1.0)
    assert critic.explained_variance(np.zeros((1, 3)), returns, mask) == pytest.approx(0.0)
    assert critic.explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert np.isnan(critic.explained_variance(returns, np.ones((1, 3)), mask))


def test_preference_losses() -> None:
    pairs = [(0, 1), (0, 2)]  # The second has no tokens on one side.
    d = log(0.6 / 0.3) + log(0.25 / 0.5) - log(0.4 / 0.4)
    assert preference.margin(BATCH.logp_new, BATCH, (0, 1)) == pytest.approx(d)
    batch = replace(BATCH, logp_ref=BATCH.logp_ref - np.array([[1.0], [0.0], [0.0]]))
    d += 2

    def sig(x: float) -> float:
        return 1 / (1 + exp(-x))

    def pulled(weight: float) -> list[list[float]]:
        return [[weight, weight], [-weight, 0], [0, 0]]

    value, slope = grad(preference.dpo(batch, pairs), batch)
    assert value == pytest.approx(-log(sig(0.1 * d)))
    same(slope, pulled(-0.1 * sig(-0.1 * d)))
    value, slope = grad(preference.cdpo(batch, pairs, noise=0.2), batch)
    assert value == pytest.approx(-0.8 * log(sig(0.1 * d)) - 0.2 * log(sig(-0.1 * d)))
    same(slope, pulled(-0.1 * (0.8 * sig(-0.1 * d) - 0.2 * sig(0.1 * d))))
    value, slope = grad(preference.robust_dpo(batch, pairs, noise=0.2), batch)
    assert value == pytest.approx((-0.8 * log(sig(0.1 * d)) + 0.2 * log(sig(-0.1 * d))) / 0.6)
    same(slope, pulled(-0.1 * (0.8 * sig(-0.1 * d) + 0.2 * sig(0.1 * d)) / 0.6))
    value, slope = grad(preference.ipo(batch, pairs), batch)
    assert value == pytest.approx((d - 5) ** 2)
    same(slope, pulled(2 * (d - 5)))
    value, slope = grad(preference.ipo(batch, pairs, average=True), batch)
    assert value == pytest.approx((d / 2 - 5) ** 2)
    same(slope, [[d / 2 - 5, d / 2 - 5], [-2 * (d / 2 - 5), 0], [0, 0]])
    gap = 2 * ((log(0.6) + log(0.25)) / 2 - log(0.4)) - 0.5
    value, slope = grad(preference.simpo(batch, pairs, beta=2.0, gamma=0.5), batch)
    assert value == pytest.approx(-log(sig(gap)))
    same(slope, [[-sig(-gap), -sig(-gap)], [2 * sig(-gap), 0], [0, 0]])
    assert preference.kto_baseline(batch.logp_new, batch, [0, 1, 2]) == pytest.approx(d / 2)
    assert preference.kto_baseline(batch.logp_new, replace(batch, logp_ref=batch.logp_ref + 9), [0, 1]) == 0
    metrics = preference.pair_metrics(batch, pairs)
    assert metrics["accuracy"] == 1
    assert metrics["chosen_logp"] == pytest.approx(log(0.15))


def test_top_k_with_tail_keeps_the_mass() -> None:
    student, teacher = np.log(np.array([0.5, 0.3, 0.15, 0.05])), np.log(np.array([0.2, 0.1, 0.6, 0.1]))
    mask = np.ones((1, 1), dtype=bool)
    loss = distillation.vocabulary_loss(teacher.reshape(1, 1, 4), mask, distillation.reverse_kl, top_k=2)
    expected = 0.5 * log(0.5 / 0.2) + 0.15 * log(0.15 / 0.6) + 0.35 * log(0.35 / 0.2)
    assert loss(student.reshape(1, 1, 4)) == pytest.approx(expected)
    cut = distillation.vocabulary_loss(teacher.reshape(1, 1, 4), mask, distillation.reverse_kl, top_k=2, tail=False)
    p, q = (0.5 / 0.65, 0.15 / 0.65), (0.25, 0.75)
    assert cut(student.reshape(1, 1, 4)) == pytest.approx(p[0] * log(p[0] / q[0]) + p[1] * log(p[1] / q[1]))


def test_jsd_by_hand() -> None:
    teacher, student = np.array([0.8, 0.2]), np.array([0.4, 0.6])
    mixed = 0.25 * teacher + 0.75 * student
    expected = 0.25 * (teacher * np.log(teacher / mixed)).sum() + 0.75 * (student * np.log(student / mixed)).sum()
    assert distillation.jsd(np.log(teacher), np.log(student), 0.25) == pytest.approx(expected)
    forward = (teacher * np.log(teacher / student)).sum()
    assert distillation.jsd(np.log(teacher), np.log(student), 0) == pytest.approx(forward)
    assert distillation.jsd(np.log(teacher), np.log(student), 1e-6) / 1e-6 == pytest.approx(forward, rel=1e-4)

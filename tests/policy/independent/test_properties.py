"""Known properties of the formulas, over ragged batches with interior masks and fully masked rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from . import advantages as adv
from . import corrections, critic, distillation, preference, rows
from . import token_losses as tok
from .arrays import Array, Batch, Loss, evaluate, live_rows, row_tokens

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """2 to 6 rows of 1 to 4 positions, 1 to 3 interleaved groups, rewards on a coarse grid, NaN outside the mask."""
    count, width = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = rng.random((count, width)) < 0.7
    assume(mask.any())

    def logp(centre: Array | None = None, spread: float = 0.5) -> Array:
        values = -rng.exponential(1.0, mask.shape) if centre is None else centre + rng.normal(0, spread, mask.shape)
        return np.where(mask, np.minimum(values, -1e-3), np.nan)

    new = logp()
    old = logp(new)
    return Batch(
        logp_new=new,
        mask=mask,
        logp_old=old,
        logp_rollout=logp(old, 0.3),
        logp_ref=logp(new),
        rewards=np.where(mask.any(axis=1), rng.integers(0, 4, count) / 2.0, np.nan),
        group_ids=rng.integers(0, 3, count) * 5,
    )


METHODS: dict[str, Callable[[Batch], Loss]] = {
    "reinforce": rows.reinforce,
    "clipped": rows.clipped,
    "prompt average": lambda b: rows.clipped(b, how="prompt_mean"),
    "decoupled": rows.decoupled,
    "gspo": rows.gspo,
    "gspo token": rows.gspo_token,
    "gmpo": rows.gmpo,
    "cispo": rows.cispo,
    "aipo": rows.aipo,
    "scalerl": rows.scalerl,
    "sapo": rows.sapo,
    "kl cov": lambda b: rows.kl_cov(b, 2),
    "dppo kl": rows.dppo,
    "dppo tv": lambda b: rows.dppo(b, kind="tv", delta=0.15),
    "topr": rows.topr,
    "prime-rl": rows.prime_rl,
    "prime-rl ipo": lambda b: rows.prime_rl(b, kind="ipo"),
    "double sided": rows.double_sided,
    "trpo": rows.trpo,
    "k3": lambda b: rows.kl_loss(b, "k3"),
}


@pytest.mark.parametrize("name", METHODS)
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
@QUICK
def test_garbage_padding_and_order_do_not_matter(name: str, batch: Batch, seed: int) -> None:
    """Other garbage under the mask, two columns and a masked row more, rows shuffled: same loss."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(batch.mask) + 1)

    def moved(values: Array) -> Array:
        wide = np.pad(values, ((0, 1), (0, 2)), constant_values=np.nan)
        return np.where(np.isnan(wide), rng.normal(0, 100, wide.shape), wide)[order]

    other = replace(
        batch,
        **{key: moved(getattr(batch, key)) for key in ("logp_new", "logp_old", "logp_rollout", "logp_ref")},
        mask=np.pad(batch.mask, ((0, 1), (0, 2)))[order],
        rewards=np.append(batch.rewards, 1e6)[order],
        group_ids=np.append(batch.group_ids, 0)[order],
    )
    # Ties in covariance are broken by position: only there the order may choose another token.
    if name == "kl cov":
        a = rows.token_advantage(batch, None, "standardised")
        cov = np.sort(tok.covariance(batch.logp_new, a, batch.mask)[batch.mask])
        assume(len(cov) < 3 or cov[-2] - cov[-3] > 1e-9)
    loss = METHODS[name](batch)
    value = METHODS[name](other)(other.logp_new, other.logp_new)
    assert value == pytest.approx(loss(batch.logp_new, batch.logp_new), rel=1e-9, abs=1e-12)


@given(batch=batches())
@QUICK
def test_group_advantages_are_centred(batch: Batch) -> None:
    args = (batch.rewards, batch.group_ids, batch.mask)
    for rule in (adv.centred, adv.standardised, adv.leave_one_out, adv.maxrl):
        values = rule(*args)
        for name in set(batch.group_ids):
            assert values[batch.group_ids == name].sum() == pytest.approx(0, abs=1e-9)
    lengths = batch.mask.sum(axis=1)
    weighted = adv.opo(*args) * lengths
    for name in set(batch.group_ids):
        assert weighted[batch.group_ids == name].sum() == pytest.approx(0, abs=1e-9)


@given(batch=batches())
@QUICK
def test_leave_one_out_is_the_centred_reward_stretched(batch: Batch) -> None:
    loo, plain = (f(batch.rewards, batch.group_ids, batch.mask) for f in (adv.leave_one_out, adv.centred))
    for i in live_rows(batch.mask):
        size = sum(batch.group_ids[j] == batch.group_ids[i] for j in live_rows(batch.mask))
        if size > 1:
            assert loo[i] == pytest.approx(size / (size - 1) * plain[i])


@given(batch=batches())
@QUICK
def test_constant_groups_get_zero(batch: Batch) -> None:
    flat = replace(batch, rewards=np.where(batch.mask.any(axis=1), 0.1 + 0.2, np.nan))
    args = (flat.rewards, flat.group_ids, flat.mask)
    for rule in (adv.centred, adv.standardised, adv.leave_one_out, adv.maxrl, adv.opo, adv.batch_std, adv.second_best):
        assert not rule(*args).any()
    assert not adv.pass_at_k(*args, 1).any()


@given(batch=batches())
@QUICK
def test_token_whitening(batch: Batch) -> None:
    values = adv.reinforce_plus_plus(batch.rewards, batch.mask)
    flat = values[batch.mask]
    assert flat.sum() == pytest.approx(0, abs=1e-9)
    assert not values[~batch.mask].any()
    if len(flat) > 1 and flat.any():
        assert flat.std(ddof=1) == pytest.approx(1, rel=1e-6)


@given(n=st.integers(2, 12), data=st.data())
@QUICK
def test_pass_at_k_advantages_sum_to_zero(n: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    rewards = np.array([1.0] * right + [0.0] * (n - right))
    values = adv.pass_at_k(rewards, np.zeros(n, dtype=np.int64), np.ones((n, 1), dtype=bool), k)
    assert values.sum() == pytest.approx(0, abs=1e-9)
    assert (values[right:] <= 1e-12).all()


@given(batch=batches())
@QUICK
def test_at_ratio_one_the_clipped_family_is_reinforce(batch: Batch) -> None:
    """With pi = pi_old = mu every ratio weight is 1: the gradients of all these methods are -A / normaliser."""
    new = batch.logp_new
    here = replace(batch, logp_old=new, logp_rollout=new)
    a = adv.standardised(here.rewards, here.group_ids, here.mask)
    plain = evaluate(rows.reinforce(here, a, "token_mean"), here)[1]
    for loss in (rows.clipped(here, a), rows.cispo(here, a), rows.aipo(here, a), rows.decoupled(here, a)):
        np.testing.assert_allclose(evaluate(loss, here)[1], plain, atol=1e-8)
    by_row = evaluate(rows.reinforce(here, a, "sequence_mean_token_mean"), here)[1]
    for loss in (rows.sapo(here, a), rows.gspo_token(here, a), rows.gspo(here, a), rows.gmpo(here, a)):
        np.testing.assert_allclose(evaluate(loss, here)[1], by_row, atol=1e-8)


@given(r=st.floats(1e-3, 50), tau=st.sampled_from([1.0, 1.05]))
@QUICK
def test_sapo_weight_is_smooth_and_one_at_ratio_one(r: float, tau: float) -> None:
    a = 1.0 if tau == 1.0 else -1.0
    mask = np.ones((1, 1), dtype=bool)

    def weight(ratio: float) -> float:
        batch = Batch(logp_new=np.log([[ratio]]), mask=mask, logp_old=np.zeros((1, 1)))
        return -float(evaluate(rows.sapo(batch, np.array([a])), batch)[1][0, 0]) / a

    assert weight(1.0) == pytest.approx(1.0, abs=1e-8)
    assert -1e-9 <= weight(r) == pytest.approx(r / np.cosh(tau * (r - 1) / 2) ** 2, abs=1e-8)


@given(batch=batches(), kind=st.sampled_from(["tv", "kl"]), delta=st.floats(0, 0.3))
@QUICK
def test_dppo_never_drops_a_token_moving_back(batch: Batch, kind: str, delta: float) -> None:
    a = rows.token_advantage(batch, None, "centred")
    keep = tok.dppo_keep(batch.logp_new, batch.logp_rollout, a, batch.mask, kind, delta)
    back = batch.mask & (np.sign(a) * (batch.logp_new - batch.logp_rollout) <= 0)
    assert (keep[back] == 1).all()
    inside = batch.mask & (np.abs(np.exp(batch.logp_new) - np.exp(batch.logp_rollout)) <= delta)
    if kind == "tv":
        assert (keep[inside] == 1).all()


@given(p=st.floats(1e-6, 1 - 1e-6), q=st.floats(1e-6, 1 - 1e-6))
@QUICK
def test_binary_divergences(p: float, q: float) -> None:
    kl = tok.binary_divergence("kl", np.log(p), np.log(q))
    tv = tok.binary_divergence("tv", np.log(p), np.log(q))
    assert kl >= 2 * tv**2 - 1e-9  # Pinsker
    assert np.isfinite(tok.binary_divergence("kl", -60.0, -1e-17))


@given(batch=batches())
@QUICK
def test_gspo_token_with_one_advantage_per_row_is_gspo(batch: Batch) -> None:
    one, other = evaluate(rows.gspo(batch), batch), evaluate(rows.gspo_token(batch), batch)
    assert one[0] == pytest.approx(other[0], abs=1e-12)
    np.testing.assert_allclose(one[1], other[1], atol=1e-8)


@given(batch=batches())
@QUICK
def test_ratio_corrected_k3_and_k2_have_the_gradient_rho_x(batch: Batch) -> None:
    slopes = [evaluate(rows.kl_loss(batch, kind), batch)[1] for kind in ("k3_ratio", "k2_ratio")]
    np.testing.assert_allclose(slopes[0], slopes[1], atol=1e-7)


@given(batch=batches())
@QUICK
def test_weights_never_exceed_their_bounds(batch: Batch) -> None:
    old, mu, mask = batch.logp_old, batch.logp_rollout, batch.mask
    whole = corrections.truncated(old, mu, mask, None)
    assert (corrections.truncated(old, mu, mask, 1.2) <= 1.2).all()
    kept = corrections.icepop(old, mu, mask, 0.8, 1.2)
    assert np.isin(kept[mask], [0.0, *whole[mask]]).all()
    assert corrections.batch_normalised(whole, mask)[mask].mean() == pytest.approx(1)
    product = corrections.sequence_truncated(old, mu, mask, 1e9)
    for i in live_rows(mask):
        assert product[i, row_tokens(mask, i)[0]] == pytest.approx(exp(np.log(whole[i][mask[i]]).sum()))


@given(batch=batches(), gamma=st.floats(0.5, 1), lam=st.floats(0, 1))
@QUICK
def test_gae_limits(batch: Batch, gamma: float, lam: float) -> None:
    values, mask = batch.logp_new, batch.mask
    reward = adv.token_rewards(batch.rewards, mask)
    recursion, _ = critic.gae(reward, values, mask, gamma, lam)
    np.testing.assert_allclose(recursion, critic.gae_by_sum(reward, values, mask, gamma, lam), atol=1e-9)
    _, returns = critic.gae(reward, values, mask, gamma, 1.0)
    np.testing.assert_allclose(returns, adv.return_to_go(reward, mask, gamma), atol=1e-9)


@given(batch=batches(), beta=st.floats(0.01, 1))
@QUICK
def test_preference_losses_at_their_ends(batch: Batch, beta: float) -> None:
    assume(batch.mask[0].any() and batch.mask[1].any())
    pairs, lp = [(0, 1)], batch.logp_new

    def at(loss: Loss) -> float:
        return loss(lp, lp)

    plain = at(preference.dpo(batch, pairs, beta))
    assert at(preference.cdpo(batch, pairs, beta, 0.0)) == pytest.approx(plain)
    assert at(preference.robust_dpo(batch, pairs, beta, 0.0)) == pytest.approx(plain)
    # Swapping the pair negates the margin, and the noisy losses swap the roles of e and 1 - e.
    swapped = [(1, 0)]
    delta = preference.margin(lp, batch, (0, 1))
    assert at(preference.dpo(batch, swapped, beta)) - plain == pytest.approx(beta * delta)
    assert at(preference.cdpo(batch, swapped, beta, 0.3)) == pytest.approx(at(preference.cdpo(batch, pairs, beta, 0.7)))


@given(seed=st.integers(0, 2**32 - 1), beta=st.floats(0.01, 0.99))
@QUICK
def test_divergences_over_the_vocabulary(seed: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    p, q = (distillation.log_softmax(rng.normal(0, 2, 6)) for _ in range(2))
    assert distillation.jsd(p, q, beta) == pytest.approx(distillation.jsd(q, p, 1 - beta))
    assert 0 <= distillation.jsd(p, q, beta) <= -beta * np.log(beta) - (1 - beta) * np.log(1 - beta) + 1e-12
    full = distillation.reverse_kl(p, q)
    support = distillation.top_support(p, 3)
    coarse = distillation.reverse_kl(distillation.with_tail(p, support), distillation.with_tail(q, support))
    assert -1e-12 <= coarse <= full + 1e-12  # Merging outcomes never raises a KL.
    assert np.exp(distillation.with_tail(p, support)).sum() == pytest.approx(1)


@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
@QUICK
def test_a_detached_factor_changes_the_value_and_opens_no_gradient_path(batch: Batch, seed: int) -> None:
    """Moving `base` changes what a weight is worth; the gradient in `moved` is the weight itself, nothing more."""
    mask = batch.mask
    base = np.where(mask, batch.logp_new + np.random.default_rng(seed).normal(0, 0.2, mask.shape), np.nan)
    a = rows.token_advantage(batch, None, "centred")
    loss = rows.aipo(batch, cap=2.0)
    weight = corrections.truncated(base, batch.logp_rollout, mask, 2.0)
    probe = replace(batch, logp_new=batch.logp_new)
    slope = evaluate(lambda _, moved: loss(base, moved), probe)[1]
    np.testing.assert_allclose(slope, -weight * a / mask.sum(), atol=1e-8)

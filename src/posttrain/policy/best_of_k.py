"""Advantages whose gradient is that of the best of several attempts."""

from __future__ import annotations

from math import comb

import numpy as np

from posttrain.policy.groups import BoolArray, Float64Array, Groups


def pass_at_k_advantages(successes: BoolArray, groups: Groups, k: int) -> Float64Array:
    """Advantages of pass@k training, float64 (S,); arXiv 2508.10751.

    With N attempts of which W are wrong: ``R = 1 - C(W,k)/C(N,k)``, ``s = sqrt(R (1 - R))``; right attempts get
    ``(1 - R)/s``, wrong ones ``(1 - R - C(W-1,k-1)/C(N-1,k-1))/s``; all 0 where s is 0 (fewer than k wrong, or none
    right) or the group has fewer than k members.
    """
    values = np.zeros(successes.shape, np.float64)
    for members in groups.members():
        number = members.size
        wrong = number - int(successes[members].sum())
        if number < k or wrong < k or wrong == number:
            continue
        expected = 1.0 - comb(wrong, k) / comb(number, k)
        spread = float(np.sqrt(expected * (1.0 - expected)))
        of_wrong = (1.0 - expected - comb(wrong - 1, k - 1) / comb(number - 1, k - 1)) / spread
        values[members] = np.where(successes[members], (1.0 - expected) / spread, of_wrong)
    return values


def second_best_advantages(rewards: Float64Array, groups: Groups) -> Float64Array:
    """``R_max - R_second`` for the best valid member of each group, 0 for all others, float64 (S,); arXiv 2503.19595.

    Ties for the best give 0, so which of them is taken does not matter; a group of one gives 0.
    """
    values = np.zeros(rewards.shape, np.float64)
    for members in groups.members():
        if members.size < 2:
            continue
        order = members[np.argsort(rewards[members], kind="stable")]
        values[order[-1]] = rewards[order[-1]] - rewards[order[-2]]
    return values

"""From rewards to advantages, by explicit group, in float64.

Legend: ``S`` sequences of a batch, ``K`` reward functions. Groups may have any sizes and any order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.errors import InputError, NonFiniteError
from posttrain.policy.best_of_k import pass_at_k_advantages, second_best_advantages
from posttrain.policy.groups import BoolArray, Float64Array, Groups
from posttrain.settings.objective import Advantage


@dataclass(frozen=True, slots=True)
class Advantages:
    """``values`` float64 (S,) is what multiplies the tokens, ``unscaled`` the same before any std, ``groups`` what
    they were computed from. Rows that are not valid have 0."""

    values: Float64Array
    unscaled: Float64Array
    groups: Groups


@dataclass(frozen=True, slots=True)
class Attempts:
    """What some baselines and scales want to know beside the rewards, one row for each sequence.

    ``lengths`` (S,) trained tokens; ``greedy_rewards`` float64 (S,) of the greedy attempt at the same task;
    ``successes`` bool (S,); ``parts`` float64 (S, K) rewards of each function, NaN where one does not apply, and
    ``part_weights`` float64 (K,).
    """

    lengths: npt.NDArray[np.integer[Any]] | None = None
    greedy_rewards: Float64Array | None = None
    successes: BoolArray | None = None
    parts: Float64Array | None = None
    part_weights: Float64Array | None = None


def sequence_advantages(
    rewards: Float64Array,
    group_ids: npt.ArrayLike,
    spec: Advantage,
    valid: BoolArray | None = None,
    attempts: Attempts | None = None,
) -> Advantages:
    """Advantage of each sequence.

    ``rewards`` float64 (S,); ``valid`` bool (S,), true where a reward exists and the member counts: the others
    enter no mean, no std and no count, and get 0 (their reward may be NaN).

    - ``leave_one_out``: ``R_i - mean of the other members = n/(n-1) (R_i - mean)``
    - ``group_mean``: ``R_i - mean of the group``
    - ``length_weighted``: ``R_i - sum_j len_j R_j / sum_j len_j``
    - ``greedy``: ``R_i - reward of the greedy attempt``
    - ``group_std``: divided by ``std(ddof) + epsilon`` of the group
    - ``batch_std``: divided by ``std(ddof) + epsilon`` of the centred rewards of all valid rows
    - ``group_reward_mean``: divided by ``mean + epsilon`` of the group's rewards; 0 where the mean is 0
    - ``batch_whiten``: ``(A - mean) / (std(ddof) + epsilon)`` over all valid rows
    - ``token_whiten``: ``(A - mean) / sqrt(var(ddof) + epsilon)``, each row counted once per trained token
    - ``combine = "parts"``: ``sum_k weight_k (R_ik - mean_k) / (std_k + epsilon)``, then the scale

    A group baseline gives exactly 0 to groups whose rewards are all equal (compared exactly: a std of rounding noise
    is not a spread) and to groups with fewer than two valid members. Raises NonFiniteError on a valid reward that is
    not finite and InputError where ``attempts`` lacks what the spec wants or a mean reward is negative. Formulas:
    arXiv 2402.14740, 2402.03300, 2503.20783, 2310.10505, 2501.03262, 2602.02710, 2510.13786; OPO and GDPO.
    """
    attempts = attempts or Attempts()
    groups = Groups.of(group_ids, valid)
    rewards = np.where(groups.valid, np.asarray(rewards, np.float64), 0.0)
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise NonFiniteError(f"reward of row {row} is {rewards[row]}; a sequence without a reward must not be valid")
    if spec.baseline == "pass_at_k":
        values = pass_at_k_advantages(_given(attempts.successes, spec), groups, spec.k)
        return Advantages(values, values, groups)
    if spec.baseline == "second_best":
        values = second_best_advantages(rewards, groups)
        return Advantages(values, values, groups)
    unscaled = _parts(attempts, groups, spec) if spec.combine == "parts" else _centre(rewards, groups, spec, attempts)
    return Advantages(_scale(unscaled, rewards, groups, spec, attempts), unscaled, groups)


def whiten(
    values: Float64Array, counts: Float64Array, ddof: int, epsilon: float, under_root: bool = False
) -> Float64Array:
    """``(x - mean) / (std(ddof) + epsilon)``, or with ``sqrt(var + epsilon)`` below, where entry i stands for
    ``counts[i]`` equal ones; all 0 where the counted entries are equal or fewer than two."""
    counted = counts > 0
    total = float(counts.sum())
    if total < 2 or np.ptp(values[counted]) == 0:
        return np.zeros_like(values)
    mean = float((counts * values).sum()) / total
    variance = float((counts * (values - mean) ** 2).sum()) / (total - ddof)
    return (values - mean) / (np.sqrt(variance + epsilon) if under_root else np.sqrt(variance) + epsilon)


def _given(value: Any, spec: Advantage) -> Any:
    if value is None:
        what = f"baseline = {spec.baseline!r}, scale = {spec.scale!r}, combine = {spec.combine!r}"
        raise InputError("policy.advantage", what, "wants more of each attempt than its reward", "Pass it in attempts")
    return value


def _centre(rewards: Float64Array, groups: Groups, spec: Advantage, attempts: Attempts) -> Float64Array:
    if spec.baseline == "none":
        return rewards
    if spec.baseline == "greedy":
        greedy = np.where(groups.valid, _given(attempts.greedy_rewards, spec), 0.0)
        if not np.isfinite(greedy).all():
            row = int(np.argmin(np.isfinite(greedy)))
            raise NonFiniteError(f"the greedy attempt at the task of row {row} has reward {greedy[row]}")
        return np.where(groups.valid, rewards - greedy, 0.0)
    if spec.baseline == "length_weighted":
        lengths = _given(attempts.lengths, spec).astype(np.float64)
        baseline = groups.sums(lengths * rewards) / np.maximum(groups.sums(lengths), 1.0)
    else:
        baseline = groups.means(rewards)
    centred = rewards - baseline[groups.index]
    if spec.baseline == "leave_one_out":
        centred *= (groups.sizes / np.maximum(groups.sizes - 1, 1))[groups.index]
    speaks = groups.valid & ~groups.constant(rewards)[groups.index]
    return np.where(speaks, centred, 0.0)


def _parts(attempts: Attempts, groups: Groups, spec: Advantage) -> Float64Array:
    parts, weights = _given(attempts.parts, spec), _given(attempts.part_weights, spec)
    combined = np.zeros(groups.index.shape, np.float64)
    for part, weight in zip(parts.T, weights, strict=True):
        # A function that does not apply to a row says nothing about it and counts in no mean.
        known = groups.valid & ~np.isnan(part)
        among = Groups(groups.index, known, np.bincount(groups.index[known], minlength=len(groups)))
        rewards = np.where(known, part, 0.0)
        centred = np.where(
            known & ~among.constant(rewards)[among.index], rewards - among.means(rewards)[among.index], 0.0
        )
        std = among.stds(rewards, spec.std_ddof)[among.index]
        combined += weight * np.divide(centred, std + spec.std_epsilon, out=np.zeros_like(centred), where=centred != 0)
    return combined


def _scale(
    centred: Float64Array, rewards: Float64Array, groups: Groups, spec: Advantage, attempts: Attempts
) -> Float64Array:
    if spec.scale == "group_reward_mean":
        return _by_reward_mean(centred, rewards, groups, spec)
    if spec.scale == "none" or not centred.any():
        return centred
    if spec.scale in ("batch_whiten", "token_whiten"):
        by_token = spec.scale == "token_whiten"
        lengths = _given(attempts.lengths, spec) if by_token else np.ones(centred.shape)
        counts = np.where(groups.valid, lengths, 0).astype(np.float64)
        return np.where(groups.valid, whiten(centred, counts, spec.std_ddof, spec.std_epsilon, by_token), 0.0)
    if spec.scale == "batch_std":
        std = float(np.std(centred[groups.valid], ddof=spec.std_ddof)) if groups.valid.sum() > spec.std_ddof else 0.0
        return centred / (std + spec.std_epsilon)
    std = groups.stds(rewards, spec.std_ddof)[groups.index]
    return np.divide(centred, std + spec.std_epsilon, out=np.zeros_like(centred), where=centred != 0)


def _by_reward_mean(centred: Float64Array, rewards: Float64Array, groups: Groups, spec: Advantage) -> Float64Array:
    lowest = float(rewards[groups.valid].min(initial=0.0))
    if lowest < 0:
        raise InputError(
            "policy.advantage.scale",
            spec.scale,
            f"a reward of {lowest:g} is negative, and dividing by a mean reward then flips signs",
            "Use rewards of 0 and 1, or a row that divides by a std, such as grpo",
        )
    mean = groups.means(rewards)[groups.index]
    return np.divide(centred, mean + spec.std_epsilon, out=np.zeros_like(centred), where=mean > 0)

"""From rewards to advantages, by explicit group, in float64.

Legend: ``S`` sequences of a batch. Groups may have any sizes and any order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.errors import NonFiniteError
from posttrain.settings.objective import Advantage

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Which sequences belong together, and which of them count.

    ``index`` int64 (S,) numbers the groups in order of first appearance in sorted ids; ``valid`` bool (S,) is
    false for members that have no reward or are not trained; ``sizes`` int64 (number of groups,) counts valid ones.
    """

    index: IndexArray
    valid: BoolArray
    sizes: IndexArray

    @classmethod
    def of(cls, group_ids: npt.ArrayLike, valid: BoolArray | None = None) -> Groups:
        """Build from one id per sequence (integers or strings)."""
        ids = np.asarray(group_ids)
        names, index = np.unique(ids, return_inverse=True)
        index = index.reshape(-1).astype(np.int64)
        valid = np.ones(ids.shape, np.bool_) if valid is None else valid
        return cls(index, valid, np.bincount(index[valid], minlength=len(names)))

    def __len__(self) -> int:
        return int(self.sizes.shape[0])

    def sums(self, values: Float64Array) -> Float64Array:
        """Sum of the valid members' values per group, float64 (number of groups,)."""
        summed = np.bincount(self.index[self.valid], weights=values[self.valid], minlength=len(self))
        return summed.astype(np.float64, copy=False)

    def means(self, values: Float64Array) -> Float64Array:
        """Mean of the valid members' values per group; 0 for a group without any."""
        return self.sums(values) / np.maximum(self.sizes, 1)

    def constant(self, values: Float64Array) -> BoolArray:
        """True for groups whose valid members are all equal, compared exactly. Bool (number of groups,)."""
        low, high = np.full(len(self), np.inf), np.full(len(self), -np.inf)
        np.minimum.at(low, self.index[self.valid], values[self.valid])
        np.maximum.at(high, self.index[self.valid], values[self.valid])
        return high <= low


@dataclass(frozen=True, slots=True)
class Advantages:
    """``values`` float64 (S,) is what multiplies the tokens, ``unscaled`` the same before any std, ``groups`` what
    they were computed from. Rows that are not valid have 0."""

    values: Float64Array
    unscaled: Float64Array
    groups: Groups


def sequence_advantages(
    rewards: Float64Array, group_ids: npt.ArrayLike, spec: Advantage, valid: BoolArray | None = None
) -> Advantages:
    """Advantage of each sequence.

    ``rewards`` float64 (S,); ``valid`` bool (S,), true where a reward exists and the member counts: the others
    enter no mean, no std and no count, and get 0 (their reward may be NaN).

    - ``leave_one_out``: ``R_i - mean of the other members = n/(n-1) (R_i - mean)``
    - ``group_mean``: ``R_i - mean of the group``
    - ``group_std``: divided by ``std(ddof) + epsilon`` of the group
    - ``batch_std``: divided by ``std(ddof) + epsilon`` of the centred rewards of all valid rows

    A group baseline gives exactly 0 to groups whose rewards are all equal (compared exactly: a std of rounding noise
    is not a spread) and to groups with fewer than two valid members. Raises NonFiniteError on a valid reward that is
    not finite. Formulas: arXiv 2402.14740, 2402.03300, 2503.20783.
    """
    groups = Groups.of(group_ids, valid)
    rewards = np.where(groups.valid, np.asarray(rewards, np.float64), 0.0)
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise NonFiniteError(f"reward of row {row} is {rewards[row]}; a sequence without a reward must not be valid")
    unscaled = _centre(rewards, groups, spec)
    return Advantages(_scale(unscaled, groups, spec), unscaled, groups)


def _centre(rewards: Float64Array, groups: Groups, spec: Advantage) -> Float64Array:
    if spec.baseline == "none":
        return rewards
    centred = rewards - groups.means(rewards)[groups.index]
    if spec.baseline == "leave_one_out":
        centred *= (groups.sizes / np.maximum(groups.sizes - 1, 1))[groups.index]
    speaks = groups.valid & ~groups.constant(rewards)[groups.index]
    return np.where(speaks, centred, 0.0)


def _scale(centred: Float64Array, groups: Groups, spec: Advantage) -> Float64Array:
    if spec.scale == "none" or not centred.any():
        return centred
    if spec.scale == "batch_std":
        std = float(np.std(centred[groups.valid], ddof=spec.std_ddof))
        return centred / (std + spec.std_epsilon)
    deviations = centred - groups.means(centred)[groups.index]
    if spec.baseline == "leave_one_out":
        deviations *= ((groups.sizes - 1) / np.maximum(groups.sizes, 1))[groups.index]
    variance = groups.sums(deviations**2) / np.maximum(groups.sizes - spec.std_ddof, 1)
    std = np.sqrt(variance)[groups.index]
    return np.divide(centred, std + spec.std_epsilon, out=np.zeros_like(centred), where=centred != 0)

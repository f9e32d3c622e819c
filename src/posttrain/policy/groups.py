"""Which sequences belong together, found by explicit id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

    def members(self) -> list[IndexArray]:
        """Positions of the valid members of each group, in order of rows."""
        return [np.flatnonzero(self.valid & (self.index == number)) for number in range(len(self))]

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

    def stds(self, values: Float64Array, ddof: int) -> Float64Array:
        """Std of the valid members' values per group with that many degrees of freedom removed."""
        deviations = values - self.means(values)[self.index]
        return np.sqrt(self.sums(deviations**2) / np.maximum(self.sizes - ddof, 1))

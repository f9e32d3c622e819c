"""What a batch of groups offers the update, before any token is scored.

Which groups the gradient comes from, how much of the batch it speaks about, and whether the advantages are what their
definition promises. Names are those of the signal registry.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.policy.advantages import Advantages
from posttrain.policy.groups import Float64Array, Groups

SUCCESS_BINS = ("0", "0-25", "25-50", "50-75", "75-100", "100")
"""Success rates of a group, per cent: exactly 0, up to 25, up to 50, up to 75, below 100, exactly 100."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Partial sums over whole groups; ``+`` merges batches that share no group.

    ``bin_mass`` and ``bin_mass_unscaled`` float64 (6,): sum of |advantage| x trained tokens by :data:`SUCCESS_BINS`.
    """

    groups: int
    zero_variance: int
    all_fail_spread: int
    small: int
    tokens: int
    success_tokens: int
    advantage_tokens: int
    absolute_mass: float
    advantage_abs_max: float
    group_mean_max: float
    bin_mass: Float64Array
    bin_mass_unscaled: Float64Array

    def __add__(self, other: GroupStatistics) -> GroupStatistics:
        largest = ("advantage_abs_max", "group_mean_max")
        merged: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            merged[item.name] = max(mine, theirs) if item.name in largest else mine + theirs
        return GroupStatistics(**merged)

    def finalize(self) -> dict[str, float]:
        """Values by signal name. Bin shares are absent where no advantage speaks."""
        groups, tokens = max(self.groups, 1), max(self.tokens, 1)
        values = {
            "reward/zero_variance_groups": self.zero_variance / groups,
            "reward/all_fail_spread_groups": self.all_fail_spread / groups,
            "reward/small_groups": float(self.small),
            "policy/success_token_share": self.success_tokens / tokens,
            "policy/advantage_token_share": self.advantage_tokens / tokens,
            "policy/advantage_abs_mean": self.absolute_mass / tokens,
            "policy/advantage_abs_max": self.advantage_abs_max,
            "policy/advantage_group_mean_max": self.group_mean_max,
        }
        for name, mass in (("advantage_share", self.bin_mass), ("advantage_share_unscaled", self.bin_mass_unscaled)):
            if mass.sum() > 0:
                shares = mass / mass.sum()
                values |= {
                    f"policy/{name}/{bin_}": float(share) for bin_, share in zip(SUCCESS_BINS, shares, strict=True)
                }
        return values


def group_statistics(
    rewards: Float64Array,
    successes: npt.NDArray[np.bool_],
    tokens: npt.NDArray[np.integer[Any]],
    advantages: Advantages,
) -> GroupStatistics:
    """Statistics of one batch.

    ``rewards`` float64 (S,) as graded, before shaping by the algorithm; ``successes`` bool (S,); ``tokens`` (S,)
    trained tokens of each sequence (0 for masked ones); ``advantages`` of the same rows. Rows that are not valid
    count nowhere; groups without a valid member do not either.
    """
    groups = advantages.groups
    tokens = np.where(groups.valid, tokens, 0)
    won = successes & groups.valid
    wins = groups.sums(won.astype(np.float64))
    present = groups.sizes > 0
    constant = groups.constant(np.where(groups.valid, rewards, 0.0)) & present
    bins = _success_bin(wins, groups)[groups.index]
    mass = np.abs(advantages.values) * tokens
    return GroupStatistics(
        groups=int(present.sum()),
        zero_variance=int(constant.sum()),
        all_fail_spread=int((present & ~constant & (wins == 0)).sum()),
        small=int((groups.sizes < 2).sum()),
        tokens=int(tokens.sum()),
        success_tokens=int(tokens[won].sum()),
        advantage_tokens=int(tokens[advantages.values != 0].sum()),
        absolute_mass=float(mass.sum()),
        advantage_abs_max=float(np.abs(advantages.values).max(initial=0.0)),
        group_mean_max=float(np.abs(groups.means(advantages.values)).max(initial=0.0)),
        bin_mass=np.bincount(bins, mass, len(SUCCESS_BINS)).astype(np.float64, copy=False),
        bin_mass_unscaled=np.bincount(bins, np.abs(advantages.unscaled) * tokens, len(SUCCESS_BINS)).astype(
            np.float64, copy=False
        ),
    )


def _success_bin(wins: Float64Array, groups: Groups) -> npt.NDArray[np.int64]:
    """Position in :data:`SUCCESS_BINS` of each group; in whole numbers, so that the edges are exact."""
    quarters = -(-4 * wins.astype(np.int64) // np.maximum(groups.sizes, 1))
    bins = np.clip(quarters, 0, 4)
    return np.where((wins == groups.sizes) & (wins > 0), 5, bins)

"""Generalised advantage estimation over the tokens the policy sampled, in float64.

Legend: ``S`` rows, ``T`` tokens of all rows together, laid out as in ``RowTable``. A *trained* token is one in
the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.errors import InputError, NonFiniteError

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Estimates:
    """``advantages`` and ``returns`` float64 (T,), 0 outside the mask. ``returns = advantages + values``: what a critic
    learns to predict, so it is taken before any whitening."""

    advantages: Float64Array
    returns: Float64Array


def generalised_advantages(
    rewards: Float64Array,
    values: Float64Array,
    mask: BoolArray,
    start: IndexArray,
    *,
    gamma: float = 1.0,
    gae_lambda: float = 1.0,
    next_values: Float64Array | None = None,
) -> Estimates:
    """Advantage and return of each trained token.

    ``d_t = r_t + gamma V_t' - V_t`` and ``A_t = d_t + gamma lambda A_t'``, where ``t'`` is the row's next *trained*
    token: tokens in between (a tool's answer) take no step, so they neither discount nor read a value. arXiv
    1506.02438, as used for PPO (arXiv 1707.06347).

    ``rewards`` (T,) is paid after each token; ``values`` (T,) is what the critic expects before it; ``start`` int64
    (S + 1,) says where rows begin. ``next_values`` (S,) is the value after a row's last token: 0, the default, where
    the row really ended, the critic's value where it was only cut off. Values outside the mask may be anything, NaN
    included. Raises InputError for a reward outside the mask, which no advantage could carry, and NonFiniteError for
    a reward or value that is not finite.
    """
    rows = len(start) - 1
    after = np.zeros(rows) if next_values is None else next_values
    lost = np.flatnonzero(~mask & (rewards != 0))
    if lost.size:
        fix = "Pay it at the last token the policy sampled before it"
        raise InputError("token rewards", float(rewards[lost[0]]), f"token {lost[0]} is not trained", fix)
    chosen = np.flatnonzero(mask)
    row = np.searchsorted(start, chosen, side="right") - 1
    reward, value = np.asarray(rewards[chosen], np.float64), np.asarray(values[chosen], np.float64)
    _check_finite("reward of a token", reward, row)
    _check_finite("value of a token", value, row)
    counts = np.bincount(row, minlength=rows)
    present = counts > 0
    _check_finite("value after the last token", after[present], np.flatnonzero(present))
    first = np.cumsum(counts) - counts
    following = np.append(value[1:], 0.0)[: len(value)]
    following[(first + counts - 1)[present]] = after[present]
    advantage = reward + gamma * following - value
    # Backwards over all rows at once: longest rows first, so that those still running are always the first ones.
    order = np.argsort(-counts, kind="stable")
    ordered_counts, ordered_first = counts[order], first[order]
    carried = np.zeros(rows)
    for step in range(int(counts.max(initial=0)) - 1, -1, -1):
        running = int(np.searchsorted(-ordered_counts, -step, side="left"))
        where = ordered_first[:running] + step
        carried[:running] = advantage[where] + gamma * gae_lambda * carried[:running]
        advantage[where] = carried[:running]
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    advantages[chosen], returns[chosen] = advantage, advantage + value
    return Estimates(advantages, returns)


def explained_variance(
    values: npt.NDArray[np.floating[Any]], returns: npt.NDArray[np.floating[Any]], mask: BoolArray
) -> float | None:
    """``1 - var(returns - values) / var(returns)`` over the masked-in tokens; ``None`` where returns do not vary.

    1 is a perfect critic, 0 a constant one, below 0 one that is worse than no critic.
    """
    wanted, got = np.asarray(returns[mask], np.float64), np.asarray(values[mask], np.float64)
    if not wanted.size or wanted.max() == wanted.min():
        return None
    return float(1.0 - np.var(wanted - got) / np.var(wanted))


def _check_finite(what: str, values: Float64Array, row: IndexArray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise NonFiniteError(f"the {what} of row {row[bad]} is {values[bad]}")

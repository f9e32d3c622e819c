"""The batch, the aggregators of per-token losses, and gradients by finite differences (formula sheet, section 0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Loss = Callable[[Array, Array], float]


@dataclass(frozen=True)
class Batch:
    """One optimizer step's rows.

    `logp_*` are (S, T) log-probs in nats, aligned so that entry t belongs to token t; `mask` (S, T) is True on tokens
    the policy sampled; `rewards` (S,), `group_ids` (S,) any integers. Absent inputs are None and asking a formula that
    needs them raises TypeError in numpy.
    """

    logp_new: Array
    mask: Mask
    logp_old: Array | None = None
    logp_rollout: Array | None = None
    logp_ref: Array | None = None
    rewards: Array | None = None
    group_ids: NDArray[np.int64] | None = None

    @classmethod
    def from_golden(cls, inputs: Mapping[str, Any]) -> Batch:
        """From a golden vector's `inputs` object (or any mapping with the field names)."""

        def get(name: str) -> Array | None:
            return None if inputs.get(name) is None else np.asarray(inputs[name], dtype=np.float64)

        groups = inputs.get("group_ids")
        return cls(
            logp_new=np.asarray(inputs["logp_new"], dtype=np.float64),
            mask=np.asarray(inputs["mask"], dtype=np.float64) > 0,
            logp_old=get("logp_old"),
            logp_rollout=get("logp_rollout"),
            logp_ref=get("logp_ref"),
            rewards=get("rewards"),
            group_ids=None if groups is None else np.asarray(groups, dtype=np.int64),
        )


def need(value: Any, name: str) -> Any:
    """The value, or a ValueError that says which input the formula lacks."""
    if value is None:
        raise ValueError(f"this formula needs {name}")
    return value


def row_tokens(mask: Mask, row: int) -> list[int]:
    """Positions of the row's policy tokens, in order."""
    return [t for t in range(mask.shape[1]) if mask[row, t]]


def live_rows(mask: Mask) -> list[int]:
    """Rows that have at least one policy token."""
    return [i for i in range(mask.shape[0]) if row_tokens(mask, i)]


def per_token(values: Array, mask: Mask) -> Array:
    """(S,) advantages broadcast to (S, T), or (S, T) ones as they are; 0 where the mask is False."""
    out = np.zeros(mask.shape)
    for i in live_rows(mask):
        for t in row_tokens(mask, i):
            out[i, t] = values[i] if values.ndim == 1 else values[i, t]
    return out


def aggregate(
    token_loss: Array,
    mask: Mask,
    how: str,
    *,
    group_ids: NDArray[np.int64] | None = None,
    constant: float = 1.0,
    counted: Mask | None = None,
) -> float:
    """One number from per-token losses (section 0.1).

    `how`: token_mean, token_sum, sequence_mean_token_mean, sequence_mean_token_sum, constant (row sums over
    rows * `constant`), prompt_mean (needs `group_ids`). `counted` is the mask the denominators count, `mask` itself
    unless given: after rejection the two choices differ by the dropped tokens.
    """
    counted = mask if counted is None else counted
    rows = live_rows(counted)

    def total(i: int) -> float:
        return float(sum(token_loss[i, t] for t in row_tokens(mask, i)))

    def size(i: int) -> int:
        return len(row_tokens(counted, i))

    if not rows:
        return 0.0
    if how == "token_mean":
        return sum(total(i) for i in rows) / sum(size(i) for i in rows)
    if how == "token_sum":
        return sum(total(i) for i in rows)
    if how == "sequence_mean_token_mean":
        return sum(total(i) / size(i) for i in rows) / len(rows)
    if how == "sequence_mean_token_sum":
        return sum(total(i) for i in rows) / len(rows)
    if how == "constant":
        return sum(total(i) for i in rows) / (len(rows) * constant)
    if how == "prompt_mean":
        groups = need(group_ids, "group_ids")
        names = sorted({int(groups[i]) for i in rows})
        shares = []
        for name in names:
            members = [i for i in rows if groups[i] == name]
            shares.append(sum(total(i) for i in members) / sum(size(i) for i in members))
        return sum(shares) / len(names)
    raise ValueError(f"unknown aggregation {how!r}")


def finite_difference(loss: Callable[[Array], float], at: Array, mask: Mask, step: float = 1e-5) -> Array:
    """d loss / d at, (S, T), by the five-point central stencil (error of order step**4); 0 where the mask is False.

    Right at a kink (a ratio equal to its bound) the stencil straddles both sides: keep inputs 2 * `step` away.
    """
    gradient = np.zeros(at.shape)
    for i, t in zip(*np.nonzero(mask), strict=True):
        values = []
        for shift in (-2, -1, 1, 2):
            moved = at.copy()
            moved[i, t] += shift * step
            values.append(loss(moved))
        gradient[i, t] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    return gradient


def evaluate(loss: Loss, batch: Batch, step: float = 1e-5) -> tuple[float, Array]:
    """(loss, d loss / d logp_new) at the batch's `logp_new`, detached factors frozen there."""
    base = batch.logp_new
    return loss(base, base), finite_difference(lambda moved: loss(base, moved), base, batch.mask, step)


def clamp_log_ratio(moved: Array, anchor: Array, limit: float) -> Array:
    """Log-probs whose log-ratio to `anchor` is held in [-limit, limit]: past it value constant, gradient 0 (A5)."""
    return anchor + np.clip(moved - anchor, -limit, limit)

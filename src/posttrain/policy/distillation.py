"""On-policy distillation by the student's own tokens: the teacher's log-prob of each becomes an advantage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.errors import NonFiniteError
from posttrain.policy.divergence import LOGPROB_FLOOR

Float64Array = npt.NDArray[np.float64]


def teacher_advantages(
    student: npt.NDArray[np.floating[Any]],
    teacher: npt.NDArray[np.floating[Any]],
    mask: npt.NDArray[np.bool_],
    sequence_index: npt.NDArray[np.integer[Any]],
    coefficient: float = 1.0,
    discount: float = 0.0,
) -> Float64Array:
    """Advantage of each token, float64 (T,), 0 where ``mask`` is false.

    ``a_t = -coefficient (log student_t - log teacher_t)``, the single-sample reverse KL, and
    ``A_t = a_t + discount A_t'`` with ``t'`` the next token of the same sequence in ``mask``: other tokens are skipped.
    ``student`` is the policy that sampled the tokens. With ``discount`` 0 the expected gradient is that of
    ``KL(student || teacher)`` at each prefix; 1 also credits a token with the gaps of the tokens after it.

    All arrays (T,), tokens of a sequence in order; values outside ``mask`` may be anything. Teacher log-probs below
    -1000 are read as -1000. Raises NonFiniteError naming the first bad token. Formula: Thinking Machines, "On-policy
    distillation"; the same as k1 in the reward with this discount.
    """
    gap = teacher_gap(student, teacher, mask)
    values = np.where(mask, -coefficient * gap, 0.0)
    if discount == 0.0:
        return values
    places = np.flatnonzero(mask)
    for here, after in zip(places[-2::-1], places[:0:-1], strict=True):
        if sequence_index[here] == sequence_index[after]:
            values[here] += discount * values[after]
    return values


def teacher_gap(
    student: npt.NDArray[np.floating[Any]], teacher: npt.NDArray[np.floating[Any]], mask: npt.NDArray[np.bool_]
) -> Float64Array:
    """``log student - log teacher`` per token, float64 (T,), 0 outside ``mask``; its mean estimates the reverse KL.

    Raises NonFiniteError where a token in ``mask`` was not scored.
    """
    theirs = np.maximum(np.where(mask, teacher, 0.0).astype(np.float64), LOGPROB_FLOOR)
    ours = np.where(mask, student, 0.0).astype(np.float64)
    gap = np.where(mask, ours - theirs, 0.0)
    if not np.isfinite(gap).all():
        bad = int(np.argmin(np.isfinite(gap)))
        raise NonFiniteError(f"token {bad} has log-prob {ours[bad]} by the student and {theirs[bad]} by the teacher")
    return gap

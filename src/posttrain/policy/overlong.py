"""What happens to attempts near or at the generation budget. Source: DAPO, arXiv 2503.14476."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.errors import InputError
from posttrain.settings.objective import Overlong
from posttrain.trajectory import FinishReason


def soft_overlong_penalty(
    lengths: npt.NDArray[np.integer[Any]], max_new_tokens: int, spec: Overlong
) -> npt.NDArray[np.float64]:
    """Term to add to each reward, float64 (S,), all 0 where the penalty is off.

    ``lengths`` (S,) counts sampled tokens. With budget L, buffer C and weight w: 0 up to L - C, then
    ``w ((L - C) - n) / C``, and -w from L on. Raises InputError if the buffer is absent or longer than the budget.
    """
    if not spec.soft_penalty:
        return np.zeros(lengths.shape, np.float64)
    buffer = spec.buffer_tokens
    if buffer is None or buffer > max_new_tokens:
        fix = f"Set it between 1 and {max_new_tokens} (rollout.max_new_tokens); the paper uses a fifth"
        raise InputError("policy.overlong.buffer_tokens", buffer, "not a part of the generation budget", fix)
    start = max_new_tokens - buffer
    # Adding 0.0 turns the -0.0 of short answers into 0.0.
    return np.clip((start - lengths.astype(np.float64)) / buffer, -1.0, 0.0) * spec.penalty_weight + 0.0


def overlong_masks(
    finish_reasons: list[FinishReason], spec: Overlong
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which sequences stay in the loss, and which in their group's baseline: two bool (S,).

    An attempt is overlong if it was cut at its length limit or at the context's.
    """
    cut = np.array([reason in (FinishReason.LENGTH, FinishReason.CONTEXT) for reason in finish_reasons], np.bool_)
    everyone = np.ones_like(cut)
    in_loss = everyone if spec.filter == "off" else ~cut
    in_baseline = ~cut if spec.filter == "loss_and_baseline" else everyone
    return in_loss, in_baseline

"""KL terms that pull the policy towards a reference. ``x = log pi - log reference``, samples from the policy.

Which place gives which gradient: k2 and k3_corrected in the loss, and k1 in the reward, have the gradient of
KL(policy || reference); k3 in the loss has that of KL(reference || policy), equal to second order near the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from posttrain.settings.objective import LOG_RATIO_CLAMP, Anchor


def anchor_values(
    logprobs: torch.Tensor, reference: torch.Tensor, log_ratio: torch.Tensor, spec: Anchor
) -> torch.Tensor:
    """Estimate of KL(policy || reference) per token, shape (M,), gradient through ``logprobs``.

    ``k1 = x``, ``k2 = x^2 / 2``, ``k3 = exp(-x) - 1 + x`` with x within +-20; ``k3_corrected`` multiplies k3 by
    ``exp(log_ratio)``, the policy over the policy the data came from, and is differentiated through both.
    """
    x = (logprobs - reference).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    if spec.estimator == "k1":
        return x
    if spec.estimator == "k2":
        return 0.5 * x * x
    k3 = torch.exp(-x) - 1.0 + x
    return k3 if spec.estimator == "k3" else torch.exp(log_ratio) * k3


def reward_penalty(
    trainer_logprobs: npt.NDArray[Any],
    reference_logprobs: npt.NDArray[Any],
    mask: npt.NDArray[np.bool_],
    sequence_index: npt.NDArray[np.integer[Any]],
    num_sequences: int,
    spec: Anchor,
) -> npt.NDArray[np.float64]:
    """KL term summed over each sequence's trained tokens, float64 (num_sequences,); see :func:`token_penalties`.

    Subtract the anchor's weight times it from the rewards before the advantages.
    """
    values = token_penalties(trainer_logprobs, reference_logprobs, mask, spec)
    return np.bincount(sequence_index, weights=values, minlength=num_sequences).astype(np.float64, copy=False)


def token_penalties(
    trainer_logprobs: npt.NDArray[Any],
    reference_logprobs: npt.NDArray[Any],
    mask: npt.NDArray[np.bool_],
    spec: Anchor,
) -> npt.NDArray[np.float64]:
    """KL term of each trained token, float64 (M,), 0 elsewhere.

    ``k1``, or ``k3`` (biased, see ``Anchor.biased_pair``); other estimators have no place in the reward. Token arrays
    are flat (M,), log-probs of the policy before the first update; masked tokens may hold anything.
    """
    x = trainer_logprobs[mask].astype(np.float64) - reference_logprobs[mask].astype(np.float64)
    x = np.clip(x, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    values = np.zeros(mask.shape)
    values[mask] = x if spec.estimator == "k1" else np.exp(-x) - 1.0 + x
    return values

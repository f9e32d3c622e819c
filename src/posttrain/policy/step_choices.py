"""What one optimizer step must know of all its tokens before the first backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.logprobs.corrections import CorrectionResult, Sequences, correction_weights
from posttrain.policy.covariance import chosen_by_covariance
from posttrain.policy.rows import RowTable
from posttrain.settings.objective import Correction, ObjectiveSpec


@dataclass(frozen=True, slots=True)
class CorrectionCounts:
    """``tokens`` int64 (S,): trained tokens of each row that count; ``mean``: of the weights over the trained tokens,
    where weights are normalised."""

    tokens: npt.NDArray[np.int64]
    mean: float | None


def correction_counts(table: RowTable, rows: npt.NDArray[np.bool_], spec: Correction) -> CorrectionCounts:
    """Denominators of the step that trains ``rows`` bool (S,), scored before if the correction asks for it."""
    tokens = np.where(rows, table.trained_tokens, 0)
    if not spec.before_update:
        return CorrectionCounts(tokens, None)
    row_of_token = table.row_of_token
    trained = table.loss_mask & rows[row_of_token]
    result = _weights(table, trained, row_of_token, spec)
    kept = result.kept.numpy()
    if spec.denominator == "kept":
        tokens = np.bincount(row_of_token[trained][kept], minlength=len(table)).astype(np.int64)
    mean = float(result.weights.sum()) / max(kept.size, 1) if spec.normalize else None
    return CorrectionCounts(tokens, mean)


def _weights(
    table: RowTable, trained: npt.NDArray[np.bool_], row_of_token: npt.NDArray[np.int64], spec: Correction
) -> CorrectionResult:
    proximal = torch.from_numpy(table.trainer_logprob[trained].astype(np.float64))
    sampler = torch.from_numpy(table.sampler_logprob[trained].astype(np.float64))
    return correction_weights(proximal, sampler, Sequences.of(torch.from_numpy(row_of_token[trained])), spec)


def choose_by_covariance(
    table: RowTable,
    logprobs: npt.NDArray[np.float32],
    rows: npt.NDArray[np.bool_],
    spec: ObjectiveSpec,
    seed: int,
) -> None:
    """Mark in ``table.covariance_chosen`` which tokens of the step's ``rows`` the trust region picks.

    ``logprobs`` float32 (T,) are the policy's now; those before the update, or the sampler's, are in the table.
    """
    trained = table.loss_mask & rows[table.row_of_token]
    old = table.trainer_logprob if spec.ratio.denominator == "proximal" else table.sampler_logprob
    table.covariance_chosen[:] = False
    table.covariance_chosen[trained] = chosen_by_covariance(
        logprobs[trained],
        logprobs[trained].astype(np.float64) - old[trained].astype(np.float64),
        table.advantage[trained],
        table.key_of_token[trained],
        spec.trust_region,
        seed,
    )

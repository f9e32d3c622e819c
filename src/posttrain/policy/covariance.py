"""Tokens chosen by the covariance of log-prob and advantage, over one whole optimizer step. Source: arXiv 2505.22617.

Entropy falls where likely tokens are rewarded: the covariance says where. The choice counts over all micro-batches and
ranks, and where it is random it depends on a seed and on each token's own key, never on the order of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.settings.objective import TrustRegion

Float64Array = npt.NDArray[np.float64]


def covariances(logprobs: npt.NDArray[Any], advantages: npt.NDArray[Any]) -> Float64Array:
    """``(A - mean A)(lp - mean lp)`` of each token, float64 (m,), means over all tokens given."""
    a, lp = advantages.astype(np.float64), logprobs.astype(np.float64)
    if a.size == 0:
        return a
    return (a - a.mean()) * (lp - lp.mean())


def chosen_by_covariance(
    logprobs: npt.NDArray[Any],
    log_ratios: npt.NDArray[Any],
    advantages: npt.NDArray[Any],
    keys: npt.NDArray[np.uint64],
    spec: TrustRegion,
    seed: int,
) -> npt.NDArray[np.bool_]:
    """Which of the step's trained tokens are chosen, bool (m,).

    ``keys`` uint64 (m,) name tokens whatever their order. At most ``max(1, floor(covariance_share * m))`` are chosen.
    ``clip_cov``: at random among those that the clip leaves alone and whose covariance is strictly between
    ``covariance_low`` and ``covariance_high``; ``kl_cov``: those of highest covariance.
    """
    chosen = np.zeros(logprobs.shape, np.bool_)
    if chosen.size == 0:
        return chosen
    cov = covariances(logprobs, advantages)
    number = max(1, int(spec.covariance_share * chosen.size))
    if spec.kind == "kl_cov":
        chosen[np.lexsort((keys, -cov))[:number]] = True
        return chosen
    ratio = np.exp(np.clip(log_ratios.astype(np.float64), -50.0, 50.0))
    clipped = ((advantages > 0) & (ratio > 1.0 + spec.clip_high)) | ((advantages < 0) & (ratio < 1.0 - spec.clip_low))
    candidates = np.flatnonzero((cov > spec.covariance_low) & (cov < spec.covariance_high) & ~clipped)
    draws = _scramble(keys[candidates], seed)
    chosen[candidates[np.lexsort((keys[candidates], draws))[:number]]] = True
    return chosen


def _scramble(keys: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """One pseudo-random number for each key (the finaliser of splitmix64, public domain)."""
    with np.errstate(over="ignore"):
        x = keys + np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

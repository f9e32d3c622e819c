"""Sampler against trainer: how far apart are two log-probs of the same tokens under the same weights.

``d = trainer - sampler`` and ``w = exp d`` per token; tokens come from the sampler. Take the trainer's values before
the first update on the batch, or the optimizer's own steps are counted as mismatch. Everything is a partial sum:
parts merge by ``+``, nothing is a mean of means. Names are those of the signal registry.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

_LIMIT = 300.0
"""Bound on |d| inside ``exp``, so that w^2 stays finite in float64; mean and max of |d| are not bounded."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Partial sums over compared tokens. ``p`` and ``q`` are the trainer's and the sampler's probabilities.

    Maxima are 0 and ``log_ratio_min``/``log_ratio_max`` +-inf where nothing was compared. ``nonfinite`` tokens have a
    log-prob that is NaN or infinite on either side; they are counted and left out of everything else.
    """

    tokens: int = 0
    nonfinite: int = 0
    absolute: float = 0.0
    absolute_max: float = 0.0
    difference: float = 0.0
    k3: float = 0.0
    exp_absolute: float = 0.0
    probability_difference: float = 0.0
    probability_difference_max: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    log_ratio_max: float = -np.inf
    log_ratio_min: float = np.inf
    p: float = 0.0
    q: float = 0.0
    pp: float = 0.0
    qq: float = 0.0
    pq: float = 0.0
    first_tokens: int = 0
    first_absolute: float = 0.0

    def __add__(self, other: Comparison) -> Comparison:
        merged: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name.endswith("_max"):
                merged[item.name] = max(mine, theirs)
            elif item.name.endswith("_min"):
                merged[item.name] = min(mine, theirs)
            else:
                merged[item.name] = mine + theirs
        return Comparison(**merged)

    def finalize(self) -> dict[str, float]:
        """Values by signal name. Quantities that do not exist are absent: everything but the two counts where no
        token was compared, the correlation where either side is constant."""
        values = {"logprobs/compared_tokens": float(self.tokens), "logprobs/nonfinite_tokens": float(self.nonfinite)}
        n = self.tokens
        if n == 0:
            return values
        values |= {
            "logprobs/mismatch_mean": self.absolute / n,
            "logprobs/mismatch_max": self.absolute_max,
            "logprobs/mismatch_bias": self.difference / n,
            "logprobs/mismatch_k3": self.k3 / n,
            "logprobs/mismatch_exp_mean": self.exp_absolute / n,
            "logprobs/probability_difference_mean": self.probability_difference / n,
            "logprobs/probability_difference_max": self.probability_difference_max,
            "logprobs/ratio_ess": self.ratio**2 / max(n * self.ratio_squared, 1e-300),
            "logprobs/ratio_max": float(np.exp(self.log_ratio_max)),
            "logprobs/ratio_min": float(np.exp(self.log_ratio_min)),
        }
        if self.first_tokens:
            values["logprobs/first_token_mismatch_mean"] = self.first_absolute / self.first_tokens
        spread = (n * self.pp - self.p**2) * (n * self.qq - self.q**2)
        if spread > (1e-12 * n * n) ** 2:
            correlation = (n * self.pq - self.p * self.q) / float(np.sqrt(spread))
            values["logprobs/probability_pearson"] = min(max(correlation, -1.0), 1.0)
        return values


def compare(
    sampler: npt.NDArray[np.floating[Any]],
    trainer: npt.NDArray[np.floating[Any]],
    mask: npt.NDArray[np.bool_],
    sequence_index: npt.NDArray[np.integer[Any]] | None = None,
) -> Comparison:
    """Compare log-probs of the same tokens, flat (M,) each; computed in float64.

    ``mask`` is true on tokens the policy sampled; values elsewhere may be anything. ``sequence_index`` (M,) tells which
    tokens belong together, in order, so that the first sampled token of each is known (absent: one sequence). The
    first token is listed apart because it alone depends on the prompt's cache only: a gap there points at the prompt
    (template, prefix sharing), a gap that grows later at decoding. Raises ValueError if shapes differ.
    """
    if not sampler.shape == trainer.shape == mask.shape:
        raise ValueError(f"shapes differ: sampler {sampler.shape}, trainer {trainer.shape}, mask {mask.shape}")
    chosen = np.flatnonzero(mask)
    sequences = np.zeros(chosen.size, np.int64) if sequence_index is None else sequence_index[chosen]
    is_first = np.zeros(chosen.size, np.bool_)
    is_first[np.unique(sequences, return_index=True)[1]] = True
    log_q, log_p = sampler[chosen].astype(np.float64), trainer[chosen].astype(np.float64)
    finite = np.isfinite(log_q) & np.isfinite(log_p)
    nonfinite = int(chosen.size - finite.sum())
    log_q, log_p, is_first = log_q[finite], log_p[finite], is_first[finite]
    if log_q.size == 0:
        return Comparison(nonfinite=nonfinite)
    d = log_p - log_q
    absolute = np.abs(d)
    bounded = np.clip(d, -_LIMIT, _LIMIT)
    w, p, q = np.exp(bounded), np.exp(log_p), np.exp(log_q)
    gap = np.abs(p - q)
    return Comparison(
        tokens=int(d.size),
        nonfinite=nonfinite,
        absolute=float(absolute.sum()),
        absolute_max=float(absolute.max()),
        difference=float(d.sum()),
        k3=float((np.expm1(bounded) - bounded).sum()),
        exp_absolute=float(np.exp(np.abs(bounded)).sum()),
        probability_difference=float(gap.sum()),
        probability_difference_max=float(gap.max()),
        ratio=float(w.sum()),
        ratio_squared=float((w * w).sum()),
        log_ratio_max=float(bounded.max()),
        log_ratio_min=float(bounded.min()),
        p=float(p.sum()),
        q=float(q.sum()),
        pp=float((p * p).sum()),
        qq=float((q * q).sum()),
        pq=float((p * q).sum()),
        first_tokens=int(is_first.sum()),
        first_absolute=float(absolute[is_first].sum()),
    )

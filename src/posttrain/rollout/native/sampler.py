"""Sampling from a whole vocabulary in a few passes, with one random stream per request.

Legend: ``B`` rows, ``V`` vocabulary, ``C`` chunks of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.errors import NonFiniteError

_CHUNK = 256


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row, a pure function of the request's seed and the position it samples.

    Counter-based (the SplitMix64 finaliser over seed and position), so a request's stream does not depend on
    what else is in the batch, on the order of admission, or on preemption. ``seeds`` and ``positions`` (B,).
    """
    with np.errstate(over="ignore"):
        state = _mix(seeds + np.uint64(0x9E3779B97F4A7C15))
        state = _mix(state ^ (positions + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class NonFiniteLogitsError(NonFiniteError):
    """``row`` of the batch has logits from which nothing can be sampled."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"the logits of batch row {row} are not finite")


@dataclass(frozen=True, slots=True)
class Sampled:
    """``token_ids`` int64 (B,) and ``logprobs`` float32 (B,) of the distribution really sampled from."""

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


class Sampler:
    """Inverse-CDF sampling in two levels: first a chunk of the vocabulary, then the token in it.

    Buffers are kept between calls. Rows of temperature 0 take the most probable token and report its log-prob at
    temperature 1.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._chunks = -(-vocabulary // _CHUNK)
        self._device = device
        self._buffer = torch.empty(0, device=device)

    @torch.no_grad()
    def sample(
        self,
        logits: torch.Tensor,
        temperatures: npt.NDArray[np.float32],
        seeds: npt.NDArray[np.uint64],
        positions: npt.NDArray[np.uint64],
    ) -> Sampled:
        """One token per row of ``logits`` (B, V). Raises NonFiniteLogitsError if some are NaN or +inf."""
        rows = logits.shape[0]
        greedy = temperatures == 0.0
        scale = torch.from_numpy(np.where(greedy, 1.0, temperatures).astype(np.float32)).to(self._device)
        weights = self._weights(rows)
        scores = weights[:, : self._vocabulary]
        if bool((scale == 1.0).all()):
            scores.copy_(logits)
        else:
            torch.div(logits, scale[:, None], out=scores)
        peak = scores.amax(-1, keepdim=True)
        if not bool(torch.isfinite(peak).all()):
            bad = int(torch.nonzero(~torch.isfinite(peak[:, 0]))[0])
            raise NonFiniteLogitsError(bad)
        best = scores.argmax(-1) if greedy.any() else None
        scores.sub_(peak).exp_()
        chunk_mass = weights.view(rows, self._chunks, _CHUNK).sum(-1).double()
        below = chunk_mass.cumsum(-1)
        total = below[:, -1:]
        draws = torch.from_numpy(uniform(seeds, positions)).to(self._device)[:, None]
        chunk, rest = _invert(below, draws * total)
        picked = weights.view(rows, self._chunks, _CHUNK)[torch.arange(rows, device=self._device), chunk[:, 0]].double()
        within = picked.cumsum(-1)
        # The chunk's mass was summed in another order than its cumulative sum: rescale the remainder to the latter.
        mass = chunk_mass.gather(1, chunk)
        inner, _ = _invert(within, rest / mass * within[:, -1:])
        tokens = (chunk * _CHUNK + inner)[:, 0]
        if best is not None:
            tokens = torch.where(torch.from_numpy(greedy).to(self._device), best, tokens)
        probability = weights.gather(1, tokens[:, None]).double() / total
        logprobs = probability.log_()[:, 0].float()
        return Sampled(tokens.cpu().numpy(), logprobs.cpu().numpy())

    def _weights(self, rows: int) -> torch.Tensor:
        width = self._chunks * _CHUNK
        if self._buffer.numel() < rows * width:
            self._buffer = torch.zeros(rows * width, dtype=torch.float32, device=self._device)
        weights = self._buffer[: rows * width].view(rows, width)
        weights[:, self._vocabulary :] = 0.0
        return weights


def _invert(cumulative: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First index whose cumulative mass exceeds ``value``, and how far ``value`` reaches into it. All (B, 1)."""
    top = torch.nextafter(cumulative[:, -1:], torch.zeros_like(cumulative[:, -1:]))
    value = torch.minimum(value, top).clamp_min_(0.0)
    index = torch.searchsorted(cumulative, value, right=True)
    before = cumulative.gather(1, (index - 1).clamp_min(0)).masked_fill_(index == 0, 0.0)
    return index, value - before

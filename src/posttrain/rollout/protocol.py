"""What an engine is: token ids in; token ids, log-probs and policy versions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from posttrain.trajectory import FinishReason, FloatArray, IntArray, SamplingParams, Segment

if TYPE_CHECKING:
    from posttrain.model.weights import WeightSet


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. ``token_ids`` int32 (P,), P >= 1."""

    request_id: str
    token_ids: IntArray
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of a request: model segments in order, and why generation ended.

    Times are seconds since the epoch.
    """

    request_id: str
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    submitted: float
    first_token: float
    finished: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; a missing capability is refused at start, not discovered in the middle."""

    sampled_logprobs: bool = True
    score: bool = True
    in_flight_weight_update: bool = False
    prefix_sharing: bool = False
    truncated_sampling: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counters and ``kv_bytes_peak`` run since start; the rest is now.

    Keys and values: ``kv_bytes_used`` is what the tokens of the running rows take, ``kv_bytes_allocated`` what is held
    for them, ``kv_bytes_peak`` the most that was held.
    """

    running: int
    waiting: int
    preempted: int
    kv_bytes_used: int
    kv_bytes_allocated: int
    kv_bytes_peak: int
    kv_bytes_limit: int
    generated_tokens: int
    prefilled_tokens: int
    shared_prompt_tokens: int
    decode_steps: int
    policy_version: int


class Engine(Protocol):
    """Implemented by every engine; one conformance suite tests them all."""

    capabilities: Capabilities

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises InputError if one can never fit (context or KV memory)."""
        ...

    def poll(self, timeout_s: float | None = None) -> list[Completion]:
        """Advance, and return what has finished since the last call (possibly nothing)."""
        ...

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests; their partial completions come back with finish reason ``aborted``."""
        ...

    def score(self, sequences: Sequence[IntArray], temperature: float = 1.0) -> list[FloatArray]:
        """Log-probs of given ids: float32 (T,) each; the first token of a sequence is NaN."""
        ...

    def load_weights(self, weights: WeightSet) -> int:
        """Take new weights. Returns the version now held, after verifying the checksum."""
        ...

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Stop decoding; running requests are kept or aborted."""
        ...

    def resume(self) -> None:
        """Decode again."""
        ...

    def stats(self) -> EngineStats:
        """Counters and memory now."""
        ...

    def close(self) -> None:
        """Release memory and processes."""
        ...

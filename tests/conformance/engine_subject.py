"""The engine that the suite tests, how it is asked, and how its answers are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from posttrain.model.weights import WeightSet
from posttrain.rollout.protocol import Completion, Engine, Request
from posttrain.trajectory import SamplingParams


@dataclass(frozen=True)
class Limits:
    """What an engine is built with. ``kv_bytes`` of ``None`` is plenty."""

    context_length: int = 96
    max_running: int = 64
    kv_bytes: int | None = None


def request(
    name: str, prompt: Sequence[int] | np.ndarray, new: int = 8, seed: int = 0, temperature: float = 1.0, **other: Any
) -> Request:
    """One request with prompt ids and sampling parameters."""
    sampling = SamplingParams(new, temperature, seed=seed, **other)
    return Request(name, np.asarray(prompt, np.int32), sampling)


def finish(engine: Engine, requests: Sequence[Request], limit: int = 5000) -> dict[str, Completion]:
    """Submit and poll until all are finished."""
    engine.submit(requests)
    return drain(engine, len(requests), limit)


def drain(engine: Engine, count: int, limit: int = 5000) -> dict[str, Completion]:
    """Poll until ``count`` completions have come out."""
    found: dict[str, Completion] = {}
    for _ in range(limit):
        for completion in engine.poll():
            assert completion.request_id not in found, "a completion came twice"
            found[completion.request_id] = completion
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} requests finished after {limit} polls: {engine.stats()}")


def ids_of(completion: Completion) -> list[int]:
    """Sampled ids."""
    return [int(i) for segment in completion.segments for i in segment.token_ids]


def logprobs_of(completion: Completion) -> np.ndarray:
    """Their log-probs."""
    parts = [s.logprobs for s in completion.segments if s.logprobs is not None]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


class EngineSubject(ABC):
    """What a suite needs of an engine. ``tolerance`` is in nats between a sampled token's log-prob and its score."""

    tolerance = 1e-4
    vocabulary = 102
    exact_batching = True

    @abstractmethod
    def make(self, limits: Limits) -> Engine:
        """A fresh engine with the weights of ``weights(0)``."""

    @abstractmethod
    def weights(self, version: int) -> WeightSet:
        """Complete weights of a version; different versions hold different values."""

    @abstractmethod
    def bytes_per_token(self) -> int:
        """KV bytes of one token of one request."""

    @pytest.fixture
    def engine(self) -> Any:
        torch.set_num_threads(1)
        engine = self.make(Limits())
        yield engine
        engine.close()

    def prompt(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(6, self.vocabulary, length).astype(np.int32)

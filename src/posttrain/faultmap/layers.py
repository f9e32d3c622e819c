"""How the six layers are called where people read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from posttrain.signals.signal import Layer

NAMES: Mapping[Layer, str] = MappingProxyType(
    {
        Layer.REWARD: "reward",
        Layer.POLICY: "update",
        Layer.LOGPROBS: "log-probs",
        Layer.ROLLOUT: "rollout",
        Layer.PARALLEL: "parallelism",
        Layer.SCHEDULE: "schedule",
    }
)
QUESTIONS: Mapping[Layer, str] = MappingProxyType(
    {
        Layer.REWARD: "Is the reward right?",
        Layer.POLICY: "Is the update controlled?",
        Layer.LOGPROBS: "Are sampler and trainer numerically the same policy?",
        Layer.ROLLOUT: "What does the engine do?",
        Layer.PARALLEL: "Does parallelism or quantisation break equality?",
        Layer.SCHEDULE: "Is the data too old?",
    }
)


def numbered(layer: Layer) -> str:
    """``1 reward``."""
    return f"{int(layer)} {NAMES[layer]}"

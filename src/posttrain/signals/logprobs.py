"""Layer 3: are sampler and trainer numerically the same policy?

All compare the sampler's log-prob of a sampled token with the trainer's under the same weights, before the
first update on the batch: d = trainer - sampler.
"""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal

_SAME_WEIGHTS = "Sampler and trainer hold the same policy version; under lag part of it is real movement."

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "logprobs/mismatch_mean",
        Layer.LOGPROBS,
        "nats per token",
        "Mean |d| over the compared tokens.",
        Reduction.MEAN,
        HealthyRange(
            0.0,
            0.01,
            "public reports call 0.001 rounding and investigate 0.01 and more",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
        _SAME_WEIGHTS,
    ),
    Signal(
        "logprobs/mismatch_max",
        Layer.LOGPROBS,
        "nats",
        "Largest |d| of one token.",
        Reduction.MAX,
        assumes=_SAME_WEIGHTS,
    ),
    Signal(
        "logprobs/mismatch_k3",
        Layer.LOGPROBS,
        "nats per token",
        "Mean of exp(d) - 1 - d: estimate of the divergence of the trainer's policy from the sampler's.",
        Reduction.MEAN,
        HealthyRange(
            0.0,
            0.01,
            "public runs moved from 0.001 to 0.03 and more before they broke",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag.",
        ),
        _SAME_WEIGHTS,
        aliases=("rollout_corr/k3_kl", "mismatch_kl"),
    ),
    Signal(
        "logprobs/compared_tokens",
        Layer.LOGPROBS,
        "tokens",
        "Tokens that have both log-probs.",
        Reduction.SUM,
    ),
)

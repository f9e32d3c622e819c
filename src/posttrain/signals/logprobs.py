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
    ),
    Signal(
        "logprobs/mismatch_bias",
        Layer.LOGPROBS,
        "nats per token",
        "Mean d; its sign says which side is more confident.",
        Reduction.MEAN,
        HealthyRange(
            -0.1,
            0.1,
            "verl's documentation warns beyond 0.1 on either side",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
        assumes=_SAME_WEIGHTS,
    ),
    Signal(
        "logprobs/mismatch_exp_mean",
        Layer.LOGPROBS,
        "ratio",
        "Mean of exp |d|: the typical factor between the two probabilities.",
        Reduction.MEAN,
        HealthyRange(
            1.0,
            1.05,
            "NeMo-RL's documentation examines samples above 1.05",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
        assumes=_SAME_WEIGHTS,
    ),
    Signal(
        "logprobs/probability_difference_mean",
        Layer.LOGPROBS,
        "probability",
        "Mean absolute difference of the two probabilities.",
        Reduction.MEAN,
        HealthyRange(
            0.0,
            0.01,
            "verl's documentation calls less than 0.005 normal and more than 0.01 a fault of precision",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
    ),
    Signal(
        "logprobs/probability_difference_max",
        Layer.LOGPROBS,
        "probability",
        "Largest absolute difference of the two probabilities.",
        Reduction.MAX,
    ),
    Signal(
        "logprobs/probability_pearson",
        Layer.LOGPROBS,
        "correlation",
        "Pearson correlation of the two probabilities over the compared tokens.",
        Reduction.LAST,
        HealthyRange(
            0.99,
            None,
            "near 1 in runs that work; no published threshold",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
    ),
    Signal(
        "logprobs/ratio_ess",
        Layer.LOGPROBS,
        "share",
        "Effective sample size (sum w)^2 / (n sum w^2) of w = exp(d) on raw values; 1 is exact agreement.",
        Reduction.LAST,
        HealthyRange(
            0.3,
            None,
            "verl's documentation warns below 0.3",
            Evidence.PROPOSED,
            "Dense model, bf16, no quantisation, no lag. Mixture-of-experts models sit higher.",
        ),
    ),
    Signal(
        "logprobs/ratio_max",
        Layer.LOGPROBS,
        "ratio",
        "Largest exp(d) of one token.",
        Reduction.MAX,
    ),
    Signal(
        "logprobs/ratio_min",
        Layer.LOGPROBS,
        "ratio",
        "Smallest exp(d) of one token.",
        Reduction.MIN,
    ),
    Signal(
        "logprobs/first_token_mismatch_mean",
        Layer.LOGPROBS,
        "nats",
        "Mean |d| of the first sampled token of a trajectory. Above the mean of all tokens, prompt handling differs.",
        Reduction.MEAN,
    ),
    Signal(
        "logprobs/nonfinite_tokens",
        Layer.LOGPROBS,
        "tokens",
        "Compared tokens whose log-prob is not finite on either side; they are in no other number of this layer.",
        Reduction.SUM,
        healthy=HealthyRange(None, 0.0, "a sampled token has a finite log-prob", Evidence.DERIVED, "Any run."),
    ),
    Signal(
        "logprobs/compared_tokens",
        Layer.LOGPROBS,
        "tokens",
        "Tokens that have both log-probs.",
        Reduction.SUM,
    ),
)

"""What is seen in layer 3: log-probs of sampler and trainer."""

from __future__ import annotations

from posttrain.faultmap.cause import Symptom
from posttrain.signals.signal import Layer

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "mismatch_from_start",
        Layer.LOGPROBS,
        "Sampler and trainer differ from the first step",
        "The gap between their log-probs is far above rounding before anything was learnt.",
        (
            "temperature_not_matched",
            "support_not_matched",
            "numerics_differ",
            "prompt_handled_differently",
            "stale_weights",
            "weights_corrupted_in_sync",
        ),
        (
            "logprobs/mismatch_mean",
            "logprobs/mismatch_bias",
            "logprobs/first_token_mismatch_mean",
            "logprobs/ratio_ess",
            "logprobs/probability_pearson",
        ),
    ),
    Symptom(
        "mismatch_jump",
        Layer.LOGPROBS,
        "Sampler and trainer part at one step",
        "The gap is small, and from one step on many times larger.",
        ("learning_rate_too_high", "numerics_differ", "stale_weights", "weights_corrupted_in_sync", "data_too_old"),
        ("logprobs/mismatch_mean", "logprobs/mismatch_k3", "policy/learning_rate", "schedule/staleness_mean"),
    ),
    Symptom(
        "mismatch_growth",
        Layer.LOGPROBS,
        "Sampler and trainer drift apart",
        "The gap grows steadily over many steps.",
        ("learning_rate_too_high", "numerics_differ", "stale_weights", "stale_cache", "data_too_old"),
        ("logprobs/mismatch_mean", "logprobs/mismatch_k3", "policy/entropy", "schedule/staleness_mean"),
    ),
)

"""What is seen in layer 4: lengths, ends and throughput of rollouts."""

from __future__ import annotations

from posttrain.faultmap.cause import Symptom
from posttrain.signals.signal import Layer

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "length_explosion",
        Layer.ROLLOUT,
        "Attempts get longer and longer",
        "Mean length grows to a multiple of its level without a gain in reward.",
        (
            "reward_hacked",
            "task_mix_changed",
            "length_bias",
            "batch_reused_too_often",
            "learning_rate_too_high",
            "policy_collapsed",
            "stale_cache",
            "stop_token_missed",
            "degenerate_repetition",
            "data_too_old",
        ),
        ("rollout/length_mean", "rollout/length_wrong_mean", "rollout/length_correct_mean", "rollout/truncated_share"),
    ),
    Symptom(
        "truncation",
        Layer.ROLLOUT,
        "Attempts are cut off",
        "A large share of the attempts ends at the cap, or is counted so.",
        (
            "reward_hacked",
            "length_bias",
            "policy_collapsed",
            "stop_token_missed",
            "length_cap_too_short",
            "degenerate_repetition",
        ),
        (
            "rollout/truncated_share",
            "rollout/length_max",
            "rollout/length_mean",
            "rollout/finish/{reason}",
            "reward/mean",
        ),
    ),
)

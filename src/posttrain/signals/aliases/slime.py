"""slime (and its forks miles and vime)."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_MISMATCH = "--get-mismatch-metrics"
_AT_START = "Of the rollout's first weight version."
_PLUS_LENGTH = "All tokens after the prompt, tools included."

ALIASES: tuple[Alias, ...] = (
    Alias("rollout/raw_reward", "reward/mean", "Before normalisation within groups."),
    Alias("rollout/episode_raw_reward", "reward/mean", "Per episode (miles)."),
    Alias("rollout/zero_std/count_{reward}", "reward/zero_variance_count/{reward}", "The value is rounded in the key."),
    Alias("train/loss", "policy/loss", "The whole loss."),
    Alias("train/pg_loss", "policy/loss"),
    Alias("train/grad_norm", "policy/grad_norm"),
    Alias("train/lr-pg_0", "policy/learning_rate", "Of the first parameter group."),
    Alias("train/learning_rate", "policy/learning_rate"),
    Alias("train/entropy_loss", "policy/entropy", "The entropy itself, not negated."),
    Alias("rollout/entropy", "policy/entropy", "Before the update."),
    Alias("train/pg_clipfrac", "policy/clip_fraction", "Both sides together."),
    Alias("train/ppo_kl", "policy/approx_kl", "k1 (mean of old - new log-prob), may be negative."),
    Alias("train/kl_loss", "policy/anchor_kl", setting="--use-kl-loss"),
    Alias("train/ois", "policy/ratio_mean", "Of the trainer's own two passes."),
    Alias("train/value_loss", "policy/critic_loss", setting="--advantage-estimator ppo"),
    Alias("train/value_clipfrac", "policy/critic_clip_fraction", setting="--advantage-estimator ppo"),
    Alias("rollout/advantages", "policy/advantage_mean", "Mean over trajectories of their token means."),
    Alias("rollout/returns", "policy/return_mean", "Mean over trajectories of their token means."),
    Alias("rollout/values", "policy/value_mean", setting="--advantage-estimator ppo"),
    Alias("train/train_rollout_logprob_abs_diff", "logprobs/mismatch_mean"),
    Alias("train/mismatch_kl", "logprobs/mismatch_bias", "Sign turned.", -1.0, _MISMATCH),
    Alias("train/mismatch_k3_kl", "logprobs/mismatch_k3", setting=_MISMATCH),
    Alias("mismatch_kl", "logprobs/mismatch_bias", "Sign turned.", -1.0, _MISMATCH),
    Alias("mismatch_k3_kl", "logprobs/mismatch_k3", setting=_MISMATCH),
    Alias("train/tis", "logprobs/correction_mean", "Before its bounds in some releases.", setting="--use-tis"),
    Alias("train/tis_clipfrac", "logprobs/correction_bounded_share", setting="--use-tis"),
    Alias("train/opsm_clipfrac", "logprobs/rejected_share", "Of sequences.", setting="--use-opsm"),
    Alias("rollout/response_len/mean", "rollout/length_mean", _PLUS_LENGTH),
    Alias("rollout/response_lengths", "rollout/length_mean", _PLUS_LENGTH),
    Alias("rollout/response_len/max", "rollout/length_max", _PLUS_LENGTH),
    Alias("rollout/response_len/min", "rollout/length_min", _PLUS_LENGTH),
    Alias("rollout/response_len/median", "rollout/length_p50", _PLUS_LENGTH),
    Alias("rollout/correct_response_lengths", "rollout/length_correct_mean", setting="--log-correct-samples"),
    Alias("rollout/total_lengths", "rollout/total_length_mean"),
    Alias("rollout/truncated_ratio", "rollout/truncated_share"),
    Alias("rollout/truncated", "rollout/truncated_share"),
    Alias("rollout/repetition_frac", "rollout/repetition_share"),
    Alias("multi_turn/multi_turn_metric/round_number_mean", "rollout/turns_mean", setting="--log-multi-turn"),
    Alias("perf/tokens_per_gpu_per_sec", "rollout/tokens_per_second", "Per GPU."),
    Alias("perf/actor_train_tok_per_s", "train/tokens_per_second", "Per GPU."),
    Alias("perf/step_time", "time/step"),
    Alias("perf/rollout_time", "time/rollout"),
    Alias("perf/log_probs_time", "time/scoring"),
    Alias("perf/actor_train_time", "time/training"),
    Alias("perf/update_weights_time", "time/sync"),
    Alias("eval/{environment}-truncated_ratio", "evaluation/{environment}/truncated_share"),
    Alias("eval/{environment}/truncated_ratio", "evaluation/{environment}/truncated_share"),
    Alias("eval/{environment}/response_len/mean", "evaluation/{environment}/length_mean"),
    Alias(
        "eval/{environment}", "evaluation/{environment}/reward_mean", setting="--eval-interval and --eval-prompt-data"
    ),
    Alias("polar/staleness/mean", "schedule/staleness_mean", _AT_START),
)

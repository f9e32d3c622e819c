"""verl: older releases (0.1 to 0.3: ``timing/gen``, ``critic/lr(1e-4)``) and newer ones (to 0.10)."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_GIB = float(2**30)
_RAW = "Sum of the token rewards before any KL penalty; aborted samples left out. Logged without a critic, too."
_PENALISED = "After the KL penalty, where use_kl_in_reward is on; equal to critic/score otherwise."
_PADDED = (
    "Share of responses as long as the padded batch. The newer trainer pads to the longest response, so it is at least "
    "one over the batch size and no truncation rate; where max_model_len binds it misses truncation."
)
_PROBABILITIES = "actor_rollout_ref.rollout.calculate_log_probs = true"
_CORRECTION = "algorithm.rollout_correction set (rollout_is for the weights, rollout_rs for rejection)"
_CORRECTED = "algorithm.rollout_correction.rollout_is set"
_TRUNCATED = "Of the weights after their bound."
_CRITIC = "adv_estimator = gae"
_ONLY_LOSS_MODE = "Both sides together. Other meaning in dppo (share of masked tokens); constant 0 in sapo."
_AGGREGATED = "Averaged with loss_agg_mode: under seq-mean-token-sum it is a sum over the response."
_VALIDATION = "trainer.test_freq above 0 and data.val_files"

ALIASES: tuple[Alias, ...] = (
    Alias("critic/score/mean", "reward/mean", _RAW),
    Alias("critic/score/max", "reward/max", _RAW),
    Alias("critic/score/min", "reward/min", _RAW),
    Alias("critic/rewards/mean", "reward/mean", _PENALISED),
    Alias("critic/rewards/max", "reward/max", _PENALISED),
    Alias("critic/rewards/min", "reward/min", _PENALISED),
    Alias("actor/pg_loss", "policy/loss"),
    Alias("actor/loss", "policy/loss", "The whole loss: KL and entropy terms included."),
    Alias("actor/grad_norm", "policy/grad_norm", "A step with a norm that is not finite is skipped, with a warning."),
    Alias("actor/lr", "policy/learning_rate"),
    Alias("actor/lr(1e-4)", "policy/learning_rate", "In units of 1e-4; older releases.", scale=1e-4),
    Alias("actor/entropy", "policy/entropy", _AGGREGATED),
    Alias(
        "actor/entropy_loss",
        "policy/entropy",
        "Entropy in the update pass, not negated. " + _AGGREGATED,
        setting="entropy_coeff not 0, or calculate_entropy",
    ),
    Alias("actor/entropy_coeff", "policy/entropy_weight"),
    Alias("actor/pg_clipfrac", "policy/clip_fraction", _ONLY_LOSS_MODE),
    Alias("actor/pg_clipfrac_lower", "policy/clip_fraction_dual", "Share of tokens at the dual clip (clip_ratio_c)."),
    Alias(
        "actor/ppo_kl",
        "policy/approx_kl",
        "k1 (mean of old - new log-prob), may be negative; kl_cov logs the mean magnitude.",
    ),
    Alias("actor/kl_loss", "policy/anchor_kl", "Estimator of kl_loss_type.", setting="actor.use_kl_loss = true"),
    Alias("actor/reward_kl_penalty", "policy/anchor_kl", "Estimator k1.", setting="algorithm.use_kl_in_reward = true"),
    Alias("critic/kl", "policy/anchor_kl", "Estimator k1; older releases, KL in the reward."),
    Alias("actor/kl_coef", "policy/anchor_weight", setting="actor.use_kl_loss = true"),
    Alias("actor/reward_kl_penalty_coeff", "policy/anchor_weight", setting="algorithm.use_kl_in_reward = true"),
    Alias("critic/kl_coeff", "policy/anchor_weight", "Older releases."),
    Alias("critic/advantages/mean", "policy/advantage_mean"),
    Alias("critic/advantages/max", "policy/advantage_max"),
    Alias("critic/advantages/min", "policy/advantage_min"),
    Alias("critic/returns/mean", "policy/return_mean"),
    Alias("critic/values/mean", "policy/value_mean", setting=_CRITIC),
    Alias("critic/vf_loss", "policy/critic_loss", setting=_CRITIC),
    Alias("critic/vf_clipfrac", "policy/critic_clip_fraction", setting=_CRITIC),
    Alias("critic/vf_explained_var", "policy/critic_explained_variance", setting=_CRITIC),
    Alias("critic/grad_norm", "policy/critic_grad_norm", setting=_CRITIC),
    Alias("critic/lr", "policy/critic_learning_rate", setting=_CRITIC),
    Alias("critic/lr(1e-4)", "policy/critic_learning_rate", "In units of 1e-4; older releases.", scale=1e-4),
    Alias("training/rollout_probs_diff_mean", "logprobs/probability_difference_mean", setting=_PROBABILITIES),
    Alias("training/rollout_probs_diff_max", "logprobs/probability_difference_max", setting=_PROBABILITIES),
    Alias("training/rollout_actor_probs_pearson_corr", "logprobs/probability_pearson", setting=_PROBABILITIES),
    Alias("rollout_corr/kl", "logprobs/mismatch_bias", "Sign turned: theirs is sampler - trainer.", -1.0, _CORRECTION),
    Alias("rollout_corr/k3_kl", "logprobs/mismatch_k3", setting=_CORRECTION),
    Alias("rollout_corr/chi2_token", "logprobs/chi2", setting=_CORRECTION),
    Alias("rollout_corr/rollout_is_eff_sample_size", "logprobs/ratio_ess", _TRUNCATED, setting=_CORRECTED),
    Alias("rollout_corr/rollout_is_mean", "logprobs/correction_mean", _TRUNCATED, setting=_CORRECTED),
    Alias("rollout_corr/rollout_is_max", "logprobs/correction_max", _TRUNCATED, setting=_CORRECTED),
    Alias("rollout_corr/rollout_is_min", "logprobs/correction_min", _TRUNCATED, setting=_CORRECTED),
    Alias("rollout_corr/rollout_is_oob_ratio", "logprobs/correction_bounded_share", setting=_CORRECTED),
    Alias("rollout_corr/rollout_is_ratio_fraction_high", "logprobs/correction_bounded_share", setting=_CORRECTED),
    Alias("rollout_corr/rollout_rs_masked_fraction", "logprobs/rejected_share", setting=_CORRECTION),
    Alias("actor/rollout_corr/kl", "logprobs/mismatch_bias", "Bypass mode; sign turned.", -1.0),
    Alias("actor/rollout_corr/k3_kl", "logprobs/mismatch_k3", "Bypass mode."),
    Alias("response_length/mean", "rollout/length_mean", "Tokens of tools included."),
    Alias("response_length/max", "rollout/length_max", "Tokens of tools included."),
    Alias("response_length/min", "rollout/length_min"),
    Alias("response_length/clip_ratio", "rollout/truncated_share", _PADDED),
    Alias("response/aborted_ratio", "rollout/finish/aborted"),
    Alias("prompt_length/mean", "rollout/prompt_length_mean"),
    Alias("prompt_length/max", "rollout/prompt_length_max"),
    Alias("prompt_length/min", "rollout/prompt_length_min"),
    Alias("prompt_length/clip_ratio", "rollout/prompt_truncated_share", "Share as long as the padded batch."),
    Alias("num_turns/mean", "rollout/turns_mean", setting="multi_turn.enable = true"),
    Alias("tool_call_counts/mean", "rollout/tool_calls_mean", setting="multi_turn.enable = true"),
    Alias("training/off_policy/trajectory_staleness/mean", "schedule/staleness_mean", "Per trajectory."),
    Alias("training/off_policy/trajectory_staleness/max", "schedule/staleness_max", "Per trajectory."),
    Alias("training/off_policy/evicted_samples", "schedule/evicted", "Samples, not groups."),
    Alias("fully_async/count/dropped_stale_samples", "schedule/evicted", "Samples, not groups."),
    Alias("training/filter_groups/evicted_samples", "policy/filtered_groups", "Samples, not groups."),
    Alias("timing_s/step", "time/step"),
    Alias("timing_s/gen", "time/rollout"),
    Alias("timing/gen", "time/rollout", "Older releases."),
    Alias("timing_s/reward", "time/grading"),
    Alias("timing_s/old_log_prob", "time/scoring", "The trainer's pass before the update alone."),
    Alias("timing_s/update_actor", "time/training", "Of the policy; a value model's update is apart."),
    Alias("timing/update_actor", "time/training", "Older releases."),
    Alias("timing_s/update_weights", "time/sync"),
    Alias("timing_s/param_sync", "time/sync"),
    Alias("timing_s/testing", "time/evaluation"),
    Alias("timing/testing", "time/evaluation", "Older releases."),
    Alias("timing_s/save_checkpoint", "time/checkpoint"),
    Alias("perf/throughput", "train/tokens_per_second", "Per GPU, over the whole step, sampling included."),
    Alias("perf/time_per_step", "time/step"),
    Alias("actor/perf/max_memory_allocated_gb", "run/peak_device_memory", scale=_GIB),
    Alias("perf/max_memory_allocated_gb", "run/peak_device_memory", "Older releases.", _GIB),
    Alias("training/epoch", "run/epoch"),
    Alias(
        "val-core/{environment}/acc/mean@{n}",
        "evaluation/{environment}/reward_mean",
        "Of the accuracy.",
        setting=_VALIDATION,
    ),
    Alias("val-core/{environment}/reward/mean@{n}", "evaluation/{environment}/reward_mean", setting=_VALIDATION),
    Alias(
        "val-core/{environment}/acc/best@{k}/mean",
        "evaluation/{environment}/pass@{k}",
        "Bootstrapped.",
        setting=_VALIDATION,
    ),
    Alias("val-core/{environment}/acc/maj@{k}/mean", "evaluation/{environment}/majority@{k}", "Bootstrapped."),
    Alias("val/test_score/{environment}", "evaluation/{environment}/reward_mean", "Older releases."),
    Alias("test_score/{environment}", "evaluation/{environment}/reward_mean", "Older releases."),
)

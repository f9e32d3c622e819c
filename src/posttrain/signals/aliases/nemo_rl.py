"""NeMo-RL. Keys of training are ``train/KEY``, of validation ``validation/KEY``; the console leaves that out."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_SAME = "Generation against the trainer's recomputed log-probs."

ALIASES: tuple[Alias, ...] = (
    Alias("train/reward", "reward/mean", "After scaling and shaping, where those are on."),
    Alias("train/loss", "policy/loss", "The whole loss."),
    Alias("train/policy_loss", "policy/loss", "Without the KL term."),
    Alias("train/grad_norm", "policy/grad_norm"),
    Alias("train/lr", "policy/learning_rate"),
    Alias("train/approx_entropy", "policy/sampled_entropy", "Weighted by the ratio of policy and sampler."),
    Alias("train/probs_ratio", "policy/ratio_mean"),
    Alias("train/probs_ratio_max", "policy/ratio_max"),
    Alias("train/probs_ratio_min", "policy/ratio_min"),
    Alias("train/kl_penalty", "policy/anchor_kl", setting="loss_fn.reference_policy_kl_penalty above 0"),
    Alias("train/advantages/mean", "policy/advantage_mean"),
    Alias("train/advantages/max", "policy/advantage_max"),
    Alias("train/advantages/min", "policy/advantage_min"),
    Alias("train/global_valid_toks", "policy/trained_tokens"),
    Alias("train/global_valid_seqs", "policy/trained_sequences"),
    Alias("train/token_mult_prob_error", "logprobs/mismatch_exp_mean", _SAME),
    Alias("train/gen_kl_error", "logprobs/mismatch_k3", _SAME),
    Alias(
        "train/sampling_importance_ratio",
        "logprobs/ratio_mean",
        "Of the weights used: after bounds, where a correction is on.",
    ),
    Alias(
        "train/is_oob_ratio", "logprobs/correction_bounded_share", setting="loss_fn.use_importance_sampling_correction"
    ),
    Alias("train/mean_gen_tokens_per_sample", "rollout/length_mean"),
    Alias("train/gen_tokens_per_sample/mean", "rollout/length_mean"),
    Alias("train/gen_tokens_per_sample/max", "rollout/length_max"),
    Alias("train/gen_tokens_per_sample/min", "rollout/length_min"),
    Alias("train/max_gen_tokens_per_sample", "rollout/length_max"),
    Alias("train/mean_prompt_length", "rollout/prompt_length_mean"),
    Alias("train/mean_total_tokens_per_sample", "rollout/total_length_mean"),
    Alias("train/truncation_rate", "rollout/truncated_share"),
    Alias("train/natural_termination_rate", "rollout/finish/stop"),
    Alias("train/avg_turns_per_sample", "rollout/turns_mean"),
    Alias("train/avg_trajectory_age", "schedule/staleness_mean", "Per trajectory.", setting="grpo.async_grpo.enabled"),
    Alias("timing/train/total_step_time", "time/step"),
    Alias("timing/train/generation", "time/rollout"),
    Alias("timing/train/exposed_generation", "time/rollout", "What training does not hide."),
    Alias("timing/train/policy_and_reference_logprobs", "time/scoring"),
    Alias("timing/train/policy_training", "time/training"),
    Alias("timing/train/validation", "time/evaluation"),
    Alias("timing/train/checkpointing", "time/checkpoint"),
    Alias("performance/generation_tokens_per_sec", "rollout/tokens_per_second"),
    Alias("performance/policy_training_tokens_per_sec_per_gpu", "train/tokens_per_second", "Per GPU."),
    Alias("validation/accuracy", "evaluation/validation/reward_mean", setting="grpo.val_period above 0"),
    Alias("validation/avg_length", "evaluation/validation/length_mean", setting="grpo.val_period above 0"),
)

"""TRL: ``GRPOTrainer`` and ``RLOOTrainer`` (0.15 to 1.16), asynchronous GRPO, and PPO of older releases.

Trackers write ``train/KEY`` and ``eval/KEY`` for what the console and ``trainer_state.json`` call ``KEY`` and
``eval_KEY``.
"""

from __future__ import annotations

from posttrain.signals.framework import Alias

_BATCH_STD = (
    "Standard deviation over the batch, between and within groups; before 1.0 and in asynchronous GRPO the mean of the "
    "groups' standard deviations. Releases too old to log frac_reward_zero_std are read as the latter."
)
_ON_POLICY = "Exactly 0 with one update per batch: the old log-probs are then the new ones."
_VLLM = "use_vllm = true with vllm_importance_sampling_correction = true"
_AFTER_BOUNDS = "Of the weights after clip and mask: the tail beyond the bound is not in it."
_TERMINATED = "0 where no completion ended by itself."

ALIASES: tuple[Alias, ...] = (
    Alias("reward", "reward/mean", "Weighted sum of all reward functions; a function that returned None counts as 0."),
    Alias("reward_std", "reward/std", _BATCH_STD),
    Alias("rewards/std", "reward/std"),
    Alias("rewards/{part}/mean", "reward/part/{part}/mean"),
    Alias("rewards/{part}/std", "reward/part/{part}/std", "Denominator n - 1."),
    Alias("rewards/{part}", "reward/part/{part}/mean", "Name in asynchronous GRPO and before 0.16."),
    Alias(
        "frac_reward_zero_std",
        "reward/zero_variance_groups",
        "Share of rows; 0 or 1 where scale_rewards = 'batch' (then of the whole batch).",
        setting="TRL 0.18 or newer",
    ),
    Alias("loss", "policy/loss", "The whole loss, anchor and bonus included; near 0 on policy by construction."),
    Alias("policy_loss", "policy/loss", "Without the entropy bonus.", setting="entropy_coef above 0"),
    Alias("grad_norm", "policy/grad_norm"),
    Alias("learning_rate", "policy/learning_rate"),
    Alias("entropy", "policy/entropy", "At the sampling temperature.", setting="TRL 0.20 or newer, no Liger loss"),
    Alias("policy/entropy_avg", "policy/entropy", "PPO of older releases."),
    Alias("objective/entropy", "policy/sampled_entropy", "Sum over the tokens of a completion, not per token."),
    Alias("clip_ratio/region_mean", "policy/clip_fraction", _ON_POLICY),
    Alias("clip_ratio", "policy/clip_fraction", "Name of the Liger loss and before 0.17."),
    Alias("cispo_clip_ratio", "policy/clip_fraction_high", "Share of tokens whose weight is capped; loss_type cispo."),
    Alias("policy/clipfrac_avg", "policy/clip_fraction", "PPO of older releases."),
    Alias("clip_ratio/low_mean", "policy/clip_fraction_low", _ON_POLICY),
    Alias("clip_ratio/high_mean", "policy/clip_fraction_high", _ON_POLICY),
    Alias("clip_ratio/high_max", "policy/clip_fraction_high_row_max"),
    Alias("clip_ratio/low_min", "policy/clip_fraction_low_row_min"),
    Alias("ratio", "policy/ratio_mean", "Asynchronous GRPO: against the sampler, so it mixes lag and mismatch."),
    Alias("val/ratio", "policy/ratio_mean", "PPO of older releases."),
    Alias("policy/approxkl_avg", "policy/approx_kl", "k2, half the mean squared log ratio; PPO of older releases."),
    Alias(
        "kl",
        "policy/anchor_kl",
        "k3 against the reference; in asynchronous GRPO against the sampler, in RLOO k1 of the old policy, and with "
        "use_bias_correction_kl the weighted one.",
        setting="beta above 0",
    ),
    Alias("objective/kl", "policy/anchor_kl", "k1, sum over the tokens of a completion; PPO and online DPO."),
    Alias("rewards/accuracies", "preference/accuracy", "A tie counts as wrong. DPO, KTO and CPO."),
    Alias("rewards/margins", "preference/margin"),
    Alias("rewards/chosen", "preference/chosen_reward"),
    Alias("rewards/rejected", "preference/rejected_reward"),
    Alias("logps/chosen", "preference/chosen_logprob"),
    Alias("logps/rejected", "preference/rejected_logprob"),
    Alias("eval_rewards/accuracies", "held_out/accuracy", "A tie counts as wrong. DPO, KTO and CPO."),
    Alias("eval_rewards/margins", "held_out/margin"),
    Alias("eval_rewards/chosen", "held_out/chosen_reward"),
    Alias("eval_rewards/rejected", "held_out/rejected_reward"),
    Alias("eval_logps/chosen", "held_out/chosen_logprob"),
    Alias("eval_logps/rejected", "held_out/rejected_logprob"),
    Alias("margin", "preference/margin", "RewardTrainer."),
    Alias("eval_margin", "held_out/margin", "RewardTrainer."),
    Alias("eval_loss", "held_out/loss", "Mean of the batches' means. DPO, SFT and RewardTrainer."),
    Alias("beta", "policy/anchor_weight", "Online DPO."),
    Alias("entropy_coef", "policy/entropy_weight", setting="entropy_coef above 0"),
    Alias("loss/value_avg", "policy/critic_loss", "PPO of older releases."),
    Alias("val/clipfrac_avg", "policy/critic_clip_fraction", "PPO of older releases."),
    Alias("sampling/sampling_logp_difference/mean", "logprobs/mismatch_mean", setting=_VLLM),
    Alias("sampling/sampling_logp_difference/max", "logprobs/mismatch_max", setting=_VLLM),
    Alias("sampling/importance_sampling_ratio/mean", "logprobs/correction_mean", _AFTER_BOUNDS, setting=_VLLM),
    Alias("sampling/importance_sampling_ratio/max", "logprobs/correction_max", _AFTER_BOUNDS, setting=_VLLM),
    Alias("sampling/importance_sampling_ratio/min", "logprobs/correction_min", _AFTER_BOUNDS, setting=_VLLM),
    Alias("completions/mean_length", "rollout/length_mean", "Tokens of tools are not in it."),
    Alias("completion_length", "rollout/length_mean", "Name before 0.17."),
    Alias("completions/min_length", "rollout/length_min"),
    Alias("completions/max_length", "rollout/length_max"),
    Alias("completions/clipped_ratio", "rollout/truncated_share", "Share of rows without a stop token at their end."),
    Alias("completions/mean_terminated_length", "rollout/terminated_length_mean", _TERMINATED),
    Alias("completions/min_terminated_length", "rollout/terminated_length_min", _TERMINATED),
    Alias("completions/max_terminated_length", "rollout/terminated_length_max", _TERMINATED),
    Alias("num_tokens", "rollout/total_tokens", "Running total of prompts and completions."),
    Alias("tools/call_frequency", "rollout/tool_calls_mean", setting="tools = [...]"),
    Alias("tools/failure_frequency", "rollout/tool_failure_share", setting="tools = [...]"),
    Alias("sample/staleness_mean", "schedule/staleness_mean", "Per sample. Asynchronous GRPO, 1.16 or newer."),
    Alias("sample/staleness_max", "schedule/staleness_max", "Per sample. Asynchronous GRPO, 1.16 or newer."),
    Alias("sample/dropped_stale_total", "schedule/evicted", "Samples, running total. Asynchronous GRPO."),
    Alias("generation_tok_per_s", "rollout/tokens_per_second", "Asynchronous GRPO."),
    Alias("training_tok/s", "train/tokens_per_second", "Asynchronous GRPO."),
    Alias("perf/trained_tok_per_s", "train/tokens_per_second", "Asynchronous GRPO, 1.16 or newer."),
    Alias("step_time", "time/step", "Generation included."),
    Alias("perf/step_s", "time/step", "Asynchronous GRPO, 1.16 or newer."),
    Alias("weight_sync_time_s", "time/sync", "Asynchronous GRPO."),
    Alias("perf/weight_sync_s", "time/sync", "Asynchronous GRPO, 1.16 or newer."),
    Alias("epoch", "run/epoch"),
    Alias("eval_reward", "evaluation/eval/reward_mean", setting="eval_strategy = 'steps' and an eval_dataset"),
    Alias("eval_completions/mean_length", "evaluation/eval/length_mean", setting="eval_strategy = 'steps'"),
    Alias("eval_completions/clipped_ratio", "evaluation/eval/truncated_share", setting="eval_strategy = 'steps'"),
    Alias("eval_rewards/{part}/mean", "evaluation/eval/part/{part}/mean", setting="eval_strategy = 'steps'"),
    Alias("eval_{environment}_reward", "evaluation/{environment}/reward_mean", setting="a dict of eval_datasets"),
    Alias("eval_{environment}_completions/mean_length", "evaluation/{environment}/length_mean"),
    Alias("eval_{environment}_completions/clipped_ratio", "evaluation/{environment}/truncated_share"),
    Alias("eval_{environment}_rewards/{part}/mean", "evaluation/{environment}/part/{part}/mean"),
)

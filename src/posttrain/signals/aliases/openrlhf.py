"""OpenRLHF (0.5 to 0.11). Trackers write ``train/KEY`` and ``eval/KEY``; the console prints one dict a step."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_SPAN = "Length of the whole response, tokens of tools included."
_NEEDS_ENTROPY = "--actor.entropy_coef (0 logs it only)"
_CORRECTION = "--algo.advantage.is_correction_enable"

ALIASES: tuple[Alias, ...] = (
    Alias("reward", "reward/mean", "After clipping; length penalties included."),
    Alias("rollout/reward_mean", "reward/mean", "Of everything sampled, before filters."),
    Alias("score", "reward/success", "The reward function's own score, where it gives one."),
    Alias("rollout/reward_std", "reward/std"),
    Alias("group_reward_std", "reward/group_std_mean"),
    Alias("policy_loss", "policy/loss"),
    Alias("actor_grad_norm", "policy/grad_norm"),
    Alias("actor_lr", "policy/learning_rate"),
    Alias("entropy_loss", "policy/entropy", "The entropy itself, not negated.", setting=_NEEDS_ENTROPY),
    Alias("ppo_clip_ratio", "policy/clip_fraction", "Both sides together; dual clip not in it."),
    Alias("clip_ratio", "policy/clip_fraction", "Older releases."),
    Alias("ppo_kl", "policy/approx_kl", "k1 (mean of old - new log-prob), may be negative."),
    Alias("kl", "policy/anchor_kl", "Estimator of --algo.kl.estimator.", setting="--algo.kl.init_coef above 0"),
    Alias("return", "policy/return_mean"),
    Alias("critic_loss", "policy/critic_loss", setting="--algo.advantage.estimator gae"),
    Alias("values", "policy/value_mean", setting="--algo.advantage.estimator gae"),
    Alias("critic_lr", "policy/critic_learning_rate", setting="--algo.advantage.estimator gae"),
    Alias("critic_grad_norm", "policy/critic_grad_norm", setting="--algo.advantage.estimator gae"),
    Alias("vllm_kl", "logprobs/mismatch_bias", "Sign turned: theirs is sampler - trainer.", -1.0, _CORRECTION),
    Alias("response_length", "rollout/length_mean", _SPAN),
    Alias("rollout/response_length_mean", "rollout/length_mean", "Of everything sampled. " + _SPAN),
    Alias("total_length", "rollout/total_length_mean"),
    Alias("rollout/truncated_rate", "rollout/truncated_share", "Always 0 in multi-turn runs."),
    Alias("truncated", "rollout/truncated_share", "Always 0 in multi-turn runs."),
    Alias(
        "response_clip_ratio", "rollout/truncated_share", "Share whose prompt and response reach the longest length."
    ),
    Alias("rollout/num_samples", "rollout/trajectories"),
    Alias("timing/step_total", "time/step"),
    Alias("timing/generation", "time/rollout"),
    Alias("timing/ppo_train", "time/training"),
    Alias("timing/broadcast", "time/sync"),
    Alias("eval_{environment}_pass1", "evaluation/{environment}/reward_mean", "Mean over the samples of a task."),
    Alias("eval_{environment}_pass{k}", "evaluation/{environment}/pass@{k}", "Best of the k samples drawn."),
    Alias("eval_{environment}_response_length_mean", "evaluation/{environment}/length_mean"),
    Alias("eval_{environment}_truncated_rate", "evaluation/{environment}/truncated_share"),
    Alias("eval_response_length_mean", "evaluation/eval/length_mean"),
    Alias("eval_truncated_rate", "evaluation/eval/truncated_share"),
)

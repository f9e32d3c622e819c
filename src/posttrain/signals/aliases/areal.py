"""AReaL: ``ppo_actor/...`` (newer) and ``grpo_actor/...`` (older), each with ``/avg``, ``/max`` and ``/min``."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_PADDED = "Share of sequences as long as the padded batch: at least one over the batch size."
_TOTAL = "Prompt and response together."
_CUT = "Over the tokens that were not rejected."
_LABEL = "Of the last version sent; fresh data may show -1."
_PER_TOKEN = "Per token."

_ACTOR: tuple[Alias, ...] = (
    Alias("task_reward/avg", "reward/mean", "Before scaling, bias and clip."),
    Alias("task_reward/max", "reward/max"),
    Alias("task_reward/min", "reward/min"),
    Alias("update/actor_loss/avg", "policy/loss"),
    Alias("update/grad_norm", "policy/grad_norm"),
    Alias("update/lr", "policy/learning_rate"),
    Alias("update/entropy/avg", "policy/entropy"),
    Alias("update/clip_ratio/avg", "policy/clip_fraction", "Both sides together."),
    Alias("update/dual_clip_ratio/avg", "policy/clip_fraction_dual", setting="actor.c_clip"),
    Alias("update/importance_weight/avg", "policy/ratio_mean"),
    Alias("update/importance_weight/max", "policy/ratio_max"),
    Alias("update/importance_weight/min", "policy/ratio_min"),
    Alias("update/approx_kl/avg", "policy/approx_kl", "k1, may be negative."),
    Alias("advantages/avg", "policy/advantage_mean"),
    Alias("advantages/max", "policy/advantage_max"),
    Alias("advantages/min", "policy/advantage_min"),
    Alias("update/behave_imp_weight/avg", "logprobs/correction_mean", _CUT, setting="actor.use_decoupled_loss = true"),
    Alias("update/behave_imp_weight/max", "logprobs/correction_max", _CUT, setting="actor.use_decoupled_loss = true"),
    Alias("update/behave_imp_weight/min", "logprobs/correction_min", _CUT, setting="actor.use_decoupled_loss = true"),
    Alias("update/behave_approx_kl/avg", "logprobs/mismatch_bias", f"{_CUT} Sign and estimator as logged."),
    Alias("update/rs_filtered_fraction", "logprobs/rejected_share", setting="actor.rejection_sampling"),
    Alias("correct_seq_len/avg", "rollout/length_correct_mean", _TOTAL),
    Alias("incorrect_seq_len/avg", "rollout/length_wrong_mean", _TOTAL),
    Alias("seq_len/avg", "rollout/total_length_mean"),
    Alias("prompt_len/avg", "rollout/prompt_length_mean"),
    Alias("prompt_len/max", "rollout/prompt_length_max"),
    Alias("no_eos_ratios/avg", "rollout/truncated_share", _PADDED),
    Alias("n_seqs", "policy/trained_sequences"),
    Alias("n_valid_tokens", "policy/trained_tokens"),
    Alias("update/version_stats/sample_staleness_theta/avg", "schedule/staleness_mean", _PER_TOKEN),
    Alias("update/version_stats/sample_staleness_theta_avg", "schedule/staleness_mean", _PER_TOKEN),
    Alias("update/version_stats/sample_staleness_theta_max", "schedule/staleness_max", _PER_TOKEN),
    Alias("update/version_stats/sample_staleness_proximal_avg", "schedule/staleness_mean", _LABEL),
)


def _scoped(scope: str) -> tuple[Alias, ...]:
    return tuple(Alias(f"{scope}/{a.key}", a.signal, a.caveat, a.scale, a.setting) for a in _ACTOR)


ALIASES: tuple[Alias, ...] = (
    *_scoped("ppo_actor"),
    *_scoped("grpo_actor"),
    Alias("ppo_critic/update/value_loss/avg", "policy/critic_loss"),
    Alias("ppo_critic/update/value_clip_ratio/avg", "policy/critic_clip_fraction"),
    Alias("ppo_critic/update/grad_norm", "policy/critic_grad_norm"),
    Alias("rollout/reward", "reward/mean", "Of everything sampled."),
    Alias("rollout/reward/avg", "reward/mean", "Of everything sampled."),
    Alias("eval-rollout/reward", "evaluation/eval/reward_mean", setting="evaluator.freq_steps"),
    Alias("eval-rollout/reward/avg", "evaluation/eval/reward_mean", setting="evaluator.freq_steps"),
    Alias("timeperf/rollout", "time/rollout"),
    Alias("timeperf/recompute_logp", "time/scoring"),
    Alias("timeperf/train_step", "time/training"),
    Alias("timeperf/update_weights", "time/sync"),
    Alias("timeperf/save", "time/checkpoint"),
    Alias("timeperf/eval", "time/evaluation"),
)

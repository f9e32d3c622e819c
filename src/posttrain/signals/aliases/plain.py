"""Names people give to the columns of a table of their own."""

from __future__ import annotations

from posttrain.signals.framework import Alias

_PAIRS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward/mean", ("reward", "reward_mean", "mean_reward", "avg_reward", "train_reward", "rewards")),
    ("reward/std", ("reward_std", "std_reward")),
    ("reward/min", ("reward_min", "min_reward")),
    ("reward/max", ("reward_max", "max_reward")),
    ("reward/success", ("accuracy", "success_rate", "pass_rate", "train_accuracy")),
    ("reward/zero_variance_groups", ("frac_zero_std", "zero_variance_fraction", "zero_std_fraction")),
    ("policy/loss", ("loss", "policy_loss", "pg_loss", "train_loss")),
    ("policy/grad_norm", ("grad_norm", "gradient_norm", "gnorm")),
    ("policy/learning_rate", ("learning_rate", "lr")),
    ("policy/entropy", ("entropy", "mean_entropy", "policy_entropy")),
    ("policy/clip_fraction", ("clip_fraction", "clipfrac", "clip_frac", "clip_ratio")),
    ("policy/approx_kl", ("approx_kl", "ppo_kl")),
    ("policy/anchor_kl", ("kl", "kl_ref", "ref_kl", "kl_to_ref", "kl_loss")),
    ("policy/ratio_mean", ("ratio_mean", "importance_ratio")),
    ("policy/ratio_max", ("ratio_max",)),
    ("logprobs/mismatch_k3", ("mismatch_kl", "rollout_kl")),
    ("rollout/length_mean", ("response_length", "completion_length", "mean_length", "length", "length_mean")),
    ("rollout/length_max", ("max_length", "length_max")),
    ("rollout/truncated_share", ("truncated", "truncation_rate", "clipped_ratio", "truncated_share")),
    ("time/step", ("step_time", "time_per_step")),
    ("run/epoch", ("epoch",)),
    ("evaluation/eval/reward_mean", ("eval_reward", "val_reward", "eval/reward", "val/reward")),
)
_ADDED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("policy/critic_loss", ("value_loss", "vf_loss", "critic_loss", "critic/vf_loss")),
    (
        "policy/critic_explained_variance",
        ("explained_variance", "value_explained_variance", "critic/vf_explained_var", "critic/explained_variance"),
    ),
    ("policy/critic_clip_fraction", ("value_clip_fraction", "critic/vf_clipfrac")),
    *(
        (
            "evaluation/eval/pass@1",
            tuple(f"{split}{mark}{what}" for mark in "/_" for what in ("accuracy", "acc", "pass@1", "success_rate")),
        )
        for split in ("eval", "val", "test", "heldout")
    ),
)
"""What scripts around any trainer add to its log: scores on a held-out set, a value model."""

ALIASES: tuple[Alias, ...] = tuple(
    Alias(key, signal, "Taken by its name: nothing says how it was computed.")
    for signal, keys in (*_PAIRS, *_ADDED)
    for key in keys
)
ADDED_KEYS = frozenset(key for _, keys in _ADDED for key in keys)
"""Keys that mean the same in the log of every framework that has no meaning of its own for them."""

"""What is seen in layer 1: rewards and held-out success."""

from __future__ import annotations

from posttrain.faultmap.cause import Symptom
from posttrain.signals.signal import Layer

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "reward_flat",
        Layer.REWARD,
        "Reward does not move at all",
        "The mean reward is the same number step after step, to the last digit or within far less than sampling noise.",
        ("reward_dead", "grader_failing", "tasks_too_hard", "reward_parts_cancel", "stale_weights", "tasks_solved"),
        (
            "reward/mean",
            "reward/std",
            "reward/zero_variance_groups",
            "reward/part/{part}/std",
            "reward/ungradable_share",
        ),
    ),
    Symptom(
        "reward_jump",
        Layer.REWARD,
        "Reward jumps",
        "The mean reward rises within a few steps by far more than its noise and more than learning before it did.",
        ("reward_hacked", "task_mix_changed", "grader_failing", "length_bias", "length_cap_too_short", "groups_lost"),
        ("reward/mean", "evaluation/{environment}/pass@{k}", "rollout/length_mean", "reward/part/{part}/mean"),
    ),
    Symptom(
        "reward_lost",
        Layer.REWARD,
        "Reward was learnt and is lost",
        "The mean reward falls far below its best level and stays there, while entropy, length or gradient norm leave "
        "their bands.",
        (
            "grader_failing",
            "task_mix_changed",
            "learning_rate_too_high",
            "batch_reused_too_often",
            "policy_collapsed",
            "numerics_differ",
            "stale_weights",
            "weights_corrupted_in_sync",
            "length_cap_too_short",
            "degenerate_repetition",
            "data_too_old",
        ),
        ("reward/mean", "policy/grad_norm", "policy/entropy", "rollout/truncated_share", "logprobs/mismatch_mean"),
    ),
    Symptom(
        "held_out_flat",
        Layer.REWARD,
        "Held-out success does not follow the training reward",
        "Training reward rises clearly; success on tasks never trained on stays or falls.",
        ("reward_hacked", "task_mix_changed", "length_cap_too_short", "stale_weights"),
        ("reward/mean", "evaluation/{environment}/pass@{k}", "evaluation/{environment}/reward_mean"),
    ),
    Symptom(
        "no_group_signal",
        Layer.REWARD,
        "Groups have no spread",
        "In nearly all groups every attempt has the same reward; a group baseline leaves nothing to learn from.",
        (
            "reward_dead",
            "tasks_too_hard",
            "reward_parts_cancel",
            "tasks_solved",
            "no_exploration",
            "group_members_alike",
            "length_cap_too_short",
        ),
        ("reward/zero_variance_groups", "reward/group_std_mean", "reward/all_success_groups", "reward/all_fail_groups"),
    ),
    Symptom(
        "ungradable",
        Layer.REWARD,
        "Attempts cannot be graded",
        "A share of the attempts has no reward: the grader failed, timed out, or found nothing it could judge.",
        ("grader_failing", "stop_token_missed", "length_cap_too_short", "weights_corrupted_in_sync"),
        ("reward/ungradable_share", "reward/failed", "reward/grader_timeouts", "reward/parsable_share"),
    ),
    Symptom(
        "no_progress",
        Layer.REWARD,
        "Nothing is learnt although there is signal",
        "Groups differ and gradients flow, but neither reward nor divergence from the start moves over many steps.",
        ("reward_parts_cancel", "learning_rate_too_low", "anchor_too_strong", "stale_weights", "groups_lost"),
        ("reward/mean", "policy/approx_kl", "policy/anchor_kl", "policy/learning_rate", "policy/grad_norm"),
    ),
    Symptom(
        "plateau",
        Layer.REWARD,
        "Learning has ended early",
        "The reward rose and has stood since, well below what is possible, for most of the run.",
        ("tasks_exhausted", "learning_rate_too_low", "no_exploration", "anchor_too_strong", "stale_weights"),
        ("reward/mean", "reward/zero_variance_groups", "policy/learning_rate", "policy/entropy", "policy/grad_norm"),
    ),
)

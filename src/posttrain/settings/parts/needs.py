"""What a row needs and which data it trains on."""

from __future__ import annotations

from enum import StrEnum


class Need(StrEnum):
    """What a row cannot run without."""

    GROUP = "group size of at least 2"
    GREEDY_ATTEMPT = "one greedy attempt per task beside the group"
    CRITIC = "critic (a value model, trained beside the policy)"
    REWARD_PARTS = "several reward functions in the environment"
    NON_NEGATIVE_REWARDS = "rewards that are never negative"
    PROXIMAL_LOGPROBS = "trainer log-probs before the update"
    SAMPLER_LOGPROBS = "sampler log-probs"
    REFERENCE = "reference model"
    TEACHER = "a teacher ([teacher])"
    SINGLE_UPDATE = "one update per batch"
    SUCCESS = "success threshold of the environment"
    GENERATION_BUDGET = "generation budget (rollout.max_new_tokens)"


class Distribution(StrEnum):
    """Which distribution a row's data comes from."""

    FIXED = "fixed data"
    POLICY_INDUCED = "sampled by the policy being trained"
    STALE_POLICY = "sampled by an earlier version of the policy"

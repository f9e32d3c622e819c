"""Parts that contradict each other do not start, and a value that nothing reads is named."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import InputError
from posttrain.settings import settings_from_mapping
from posttrain.settings.algorithms import ROWS, algorithm_row
from posttrain.settings.chosen import chosen_objective
from posttrain.settings.rules import check_settings
from posttrain.settings.summary import bound_words, composed

TWO_REWARDS = {"kind": "function", "path": "rows.jsonl", "reward": ["mine:a", "mine:b"], "reward_kind": "verifiable"}


def settings(*overrides: str, environment: dict[str, Any] | None = None) -> Any:
    tables = {"a": environment or {"kind": "arithmetic"}}
    return settings_from_mapping({"model": {"path": "x"}, "environments": tables}, overrides)


CONTRADICTIONS = [
    # overrides, a part of the message
    (["algorithm=gspo", "aggregation.kind=token_mean"], "sequence_mean"),
    (["algorithm=gspo", "aggregation.kind=sequence_sum"], "sequence_mean"),
    (["algorithm=gspo", "trust_region.clip_low=0.2", "trust_region.clip_high=0.2"], "never clip"),
    (["algorithm=decoupled_ppo", "ratio.denominator=sampler"], "twice"),
    (["algorithm=aipo", "correction.weight=token"], "twice"),
    (["algorithm=decoupled_ppo", "correction.weight=none"], "another policy's data"),
    (["algorithm=sapo", "ratio.level=sequence"], "each token"),
    (["algorithm=dppo_tv", "ratio.level=product"], "each token"),
    (["algorithm=gmpo", "ratio.level=token"], "geometric mean"),
    (["algorithm=reinforce_loo", "trust_region.kind=clip"], "ratio"),
    (["algorithm=pass_at_k", "advantage.scale=group_std"], "whole advantage"),
    (["algorithm=reinforce", "advantage.scale=group_std"], "baseline"),
    (["algorithm=gdpo", "advantage.scale=group_std"], "parts"),
    (["algorithm=grpo", "correction.denominator=kept"], "nothing is dropped"),
    (["algorithm=grpo", "correction.normalize=true"], "weight"),
    (["algorithm=grpo", "correction.weight=token", "correction.rule=mask", "correction.low=3"], "not below high"),
    (["algorithm=grpo", "correction.reject=geometric", "correction.reject_low=2"], "not below reject_high"),
    (["algorithm=clip_cov", "trust_region.covariance_low=7"], "not below"),
    (["algorithm=prime_rl_2025", "trust_region.weight_low=9"], "above weight_high"),
]


@pytest.mark.parametrize(("overrides", "words"), CONTRADICTIONS)
def test_contradicting_parts(overrides: list[str], words: str) -> None:
    chosen = settings(*(f"--policy.{text}" for text in overrides))
    with pytest.raises(InputError, match=words) as caught:
        chosen_objective(chosen.policy)
    assert "policy" in str(caught.value)
    assert chosen_objective(settings(f"--policy.{overrides[0]}").policy), "the row alone is fine"


WITHOUT_EFFECT = [
    ("grpo", "trust_region.weight_high=3", "clip_high"),
    ("cispo", "trust_region.clip_high=0.3", "weight_high"),
    ("sapo", "trust_region.dual_clip=3", "gate_positive"),
    ("grpo", "advantage.k=3", "std_epsilon"),
    ("dr_grpo", "advantage.std_ddof=0", "baseline"),
    ("grpo", "correction.high=5", "weight"),
    ("decoupled_ppo", "correction.low=0.5", "high"),
    ("decoupled_ppo", "correction.reject_high=2", "reject"),
]


@pytest.mark.parametrize(("row", "override", "read"), WITHOUT_EFFECT)
def test_a_value_that_nothing_reads(row: str, override: str, read: str) -> None:
    chosen = settings(f"--policy.algorithm={row}", f"--policy.{override}")
    with pytest.raises(InputError, match="has no effect") as caught:
        chosen_objective(chosen.policy)
    assert override.split("=")[0] in str(caught.value)
    assert read in str(caught.value)


REFUSED = [
    (["algorithm=gdpo"], None, "policy.advantage.combine"),
    (["algorithm=pass_at_k", "advantage.k=9"], None, "policy.advantage.k"),
    (["algorithm=trpo_penalty"], None, "policy.updates_per_batch"),
    (["algorithm=remax", "updates_per_batch=2"], None, "policy.updates_per_batch"),
]


@pytest.mark.parametrize(("overrides", "environment", "setting"), REFUSED)
def test_needs_that_are_absent(overrides: list[str], environment: dict[str, Any] | None, setting: str) -> None:
    broken = settings(*(f"--policy.{text}" for text in overrides), environment=environment)
    with pytest.raises(InputError) as caught:
        check_settings(broken)
    assert caught.value.setting == setting


ALLOWED = [
    (["algorithm=gdpo"], TWO_REWARDS, []),
    (["algorithm=pass_at_k", "advantage.k=8"], None, []),
    (["algorithm=trpo_penalty", "updates_per_batch=2"], None, []),
    (["algorithm=trpo_penalty", "trust_region.kl_target=1"], None, ["--policy.updates_per_batch=4"]),
    (["algorithm=remax"], None, ["--rollout.group_size=1"]),
    (["algorithm=gspo", "trust_region.clip_high=5e-4"], None, []),
]


@pytest.mark.parametrize(("overrides", "environment", "more"), ALLOWED)
def test_their_nearest_neighbours_start(
    overrides: list[str], environment: dict[str, Any] | None, more: list[str]
) -> None:
    check_settings(settings(*(f"--policy.{text}" for text in overrides), *more, environment=environment))


def test_nearest_names_of_an_unknown_row() -> None:
    with pytest.raises(InputError, match=r"'gspo'.* or ") as caught:
        algorithm_row("gspp")
    assert "gspo_token" in str(caught.value)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_overrides_are_written_and_read_back(row: Any) -> None:
    """A row's own values written as overrides change nothing and survive a round trip through the file."""
    chosen = settings(f"--policy.algorithm={row.name}")
    again = settings_from_mapping(chosen.to_mapping())
    assert chosen_objective(again.policy) == row.spec
    assert bound_words(row.spec)


def test_the_composed_objective_names_its_row_what_replaces_it_and_what_comes_of_both() -> None:
    policy = settings("--policy.algorithm=gspo", "--policy.trust_region.clip_high=5e-4").policy
    text = composed(policy, chosen_objective(policy))
    assert text.startswith("policy.algorithm = gspo with trust_region.clip_high = 0.0005: ")
    assert "clip 0.9997 to 1.0005" in text
    assert "ratio sequence" in text
    assert "anchor none" in text

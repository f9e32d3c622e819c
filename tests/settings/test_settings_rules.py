"""Every refused combination, and its nearest allowed neighbour."""

from __future__ import annotations

import pytest

from posttrain.errors import InputError
from posttrain.settings import settings_from_mapping
from posttrain.settings.chosen import SOFT_ANCHOR_WEIGHT, anchor_weights, chosen_objective, needs_reference
from posttrain.settings.rules import RULES, check_settings

ARITHMETIC = {"kind": "arithmetic"}
FUNCTION = {"kind": "function", "path": "rows.jsonl", "reward": "mine:score"}


def settings(*overrides: str, **environments: dict[str, object]):
    tables = environments or {"a": ARITHMETIC}
    return settings_from_mapping({"model": {"path": "x"}, "environments": tables}, overrides)


SMALL = "--rollout.max_new_tokens=32"
BROKEN_AND_MENDED = [
    ("rollout.group_size", ["--rollout.group_size=1"], ["--rollout.group_size=1", "--policy.algorithm=reinforce"]),
    (
        "rollout.group_size",
        ["--policy.algorithm=reinforce", "--policy.group_filter.rule=mixed_success", "--rollout.group_size=1"],
        ["--policy.algorithm=reinforce", "--policy.group_filter.rule=mixed_success", "--rollout.group_size=2"],
    ),
    ("rollout.top_p", ["--rollout.top_p=0.9"], ["--rollout.top_p=1.0"]),
    ("rollout.top_k", ["--rollout.top_k=50"], ["--rollout.top_k=0"]),
    ("rollout.temperature", ["--rollout.temperature=0"], ["--rollout.temperature=0.5"]),
    (
        "policy.learning_rate",
        ["--model.master_dtype=bfloat16", "--policy.learning_rate=1e-5"],
        ["--model.master_dtype=float32", "--policy.learning_rate=1e-5"],
    ),
    (
        "policy.learning_rate",
        ["--model.master_dtype=bfloat16", "--policy.learning_rate=1e-5"],
        ["--model.master_dtype=bfloat16", "--policy.learning_rate=1e-3"],
    ),
    (
        "policy.updates_per_batch",
        ["--policy.algorithm=reinforce_loo", "--policy.updates_per_batch=2"],
        ["--policy.algorithm=grpo", "--policy.updates_per_batch=2"],
    ),
    (
        "policy.updates_per_batch",
        ["--policy.updates_per_batch=5", "--rollout.prompts_per_step=4"],
        ["--policy.updates_per_batch=4", "--rollout.prompts_per_step=4"],
    ),
    (
        "policy.warmup_steps",
        ["--policy.warmup_steps=11", "--run.steps=10"],
        ["--policy.warmup_steps=11", "--run.steps=10", "--policy.updates_per_batch=2"],
    ),
    ("policy.micro_batch_tokens", ["--policy.micro_batch_tokens=32", SMALL], ["--policy.micro_batch_tokens=64", SMALL]),
    (
        "policy.overlong.buffer_tokens",
        ["--policy.algorithm=dapo", "--policy.overlong.buffer_tokens=33", SMALL],
        ["--policy.algorithm=dapo", "--policy.overlong.buffer_tokens=32", SMALL],
    ),
    (
        "policy.group_filter.max_refills",
        ["--policy.group_filter.max_refills=2"],
        ["--policy.algorithm=dapo", "--policy.group_filter.max_refills=2"],
    ),
    (
        "policy.critic.warmup_steps",
        ["--policy.algorithm=ppo", "--policy.critic.warmup_steps=10", "--run.steps=10"],
        ["--policy.algorithm=ppo", "--policy.critic.warmup_steps=9", "--run.steps=10"],
    ),
    ("evaluation.k", ["--evaluation.k=[1,32]"], ["--evaluation.k=[1,32]", "--evaluation.samples=32"]),
    (
        "policy.anchor.estimator",
        ["--policy.anchor.estimator=k1", "--policy.anchor.weight=0.1"],
        ["--policy.anchor.estimator=k1", "--policy.anchor.weight=0.1", "--policy.anchor.place=reward"],
    ),
    (
        "policy.anchor.estimator",
        ["--policy.anchor.place=reward", "--policy.anchor.weight=0.1"],
        ["--policy.anchor.place=reward", "--policy.anchor.weight=0.1", '--policy.acknowledge=["k3_in_reward"]'],
    ),
    ("policy.anchor.estimator", ["--policy.anchor.estimator=k1", "--environments.a.anchor.weight=1"], [SMALL]),
    ("policy.algorithm", ["--policy.algorithm=gpro"], ["--policy.algorithm=grpo"]),
    (
        "policy.advantage",
        ["--policy.algorithm=reinforce", "--policy.advantage.scale=group_std"],
        ["--policy.algorithm=reinforce_loo", "--policy.advantage.scale=group_std"],
    ),
]


@pytest.mark.parametrize(("name", "broken", "mended"), BROKEN_AND_MENDED)
def test_refused_and_mended(name: str, broken: list[str], mended: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_settings(settings(*broken))
    assert caught.value.setting == name
    assert caught.value.fix
    check_settings(settings(*mended))


def test_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(InputError, match="'grpo'"):
        check_settings(settings("--policy.algorithm=gpro"))


def test_names_that_cannot_be_file_names() -> None:
    with pytest.raises(InputError, match="file names"):
        check_settings(settings(**{"a/b": ARITHMETIC}))


def test_weights_and_functions_go_together() -> None:
    ack = '--policy.acknowledge=["soft_reward_without_anchor"]'
    one_short = {**FUNCTION, "reward": ["m:f", "m:g"], "reward_weights": [1.0]}
    with pytest.raises(InputError, match="2 reward functions"):
        check_settings(settings(ack, a=one_short))
    check_settings(settings(ack, a={**one_short, "reward_weights": [1.0, 0.5]}))


def test_a_soft_reward_is_anchored_unless_told_otherwise() -> None:
    plain = settings(mine=FUNCTION)
    check_settings(plain)
    assert anchor_weights(plain) == {"mine": SOFT_ANCHOR_WEIGHT}
    assert needs_reference(plain)
    with pytest.raises(InputError) as caught:
        check_settings(settings("--policy.anchor.weight=0", mine=FUNCTION))
    assert caught.value.setting == "environments.mine.reward_kind"
    check_settings(
        settings("--policy.anchor.weight=0", '--policy.acknowledge=["soft_reward_without_anchor"]', mine=FUNCTION)
    )


def test_a_verifiable_reward_has_no_anchor_unless_asked_for() -> None:
    verifiable = settings(mine={**FUNCTION, "reward_kind": "verifiable"}, sums=ARITHMETIC)
    check_settings(verifiable)
    assert anchor_weights(verifiable) == {"mine": 0.0, "sums": 0.0}
    assert not needs_reference(verifiable)


def test_anchors_differ_by_environment() -> None:
    mixed = settings("--policy.anchor.weight=0.2", mine={**FUNCTION, "anchor": {"weight": 0.5}}, sums=ARITHMETIC)
    assert anchor_weights(mixed) == {"mine": 0.5, "sums": 0.2}


def test_an_override_changes_one_value_of_the_row() -> None:
    row = chosen_objective(settings("--policy.algorithm=dapo").policy)
    spec = chosen_objective(settings("--policy.algorithm=dapo", "--policy.trust_region.clip_low=0.1").policy)
    assert (spec.trust_region.clip_low, spec.trust_region.clip_high) == (0.1, row.trust_region.clip_high)
    assert spec.aggregation == row.aggregation


def test_stored_overrides_do_not_swallow_the_row() -> None:
    first = settings("--policy.algorithm=dapo", "--policy.trust_region.clip_low=0.1")
    again = settings_from_mapping(first.to_mapping())
    assert chosen_objective(again.policy) == chosen_objective(first.policy)


def test_every_rule_is_explained() -> None:
    assert all(rule.__doc__ for rule in RULES)


DISTILS = "--policy.algorithm=on_policy_distillation"


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ([DISTILS], "teacher.path"),
        (["--teacher.path=x"], "teacher.path"),
        ([DISTILS, "--teacher.path=x", "--policy.distillation.weight=0"], "policy.distillation"),
        ([DISTILS, "--teacher.path=self"], "teacher.prompt"),
        (
            [DISTILS, "--teacher.path=x", "--policy.distillation.kind=top_k", "--policy.distillation.discount=1"],
            "discount",
        ),
    ],
)
def test_a_distillation_that_cannot_be_meant_is_refused(given, setting):
    with pytest.raises(InputError) as caught:
        check_settings(settings(*given))
    assert setting in str(caught.value)


def test_a_distillation_alone_needs_no_group_and_no_anchor_of_a_soft_reward():
    given = settings(DISTILS, "--teacher.path=x", "--rollout.group_size=1", mine=FUNCTION)
    check_settings(given)
    assert set(anchor_weights(given).values()) == {0.0}
    with pytest.raises(InputError, match="soft"):
        check_settings(
            settings(
                DISTILS,
                "--teacher.path=x",
                "--policy.distillation.reward_weight=1",
                "--policy.anchor.weight=0",
                mine=FUNCTION,
            )
        )


@pytest.mark.parametrize(
    ("overrides", "mended"),
    [
        (["--policy.critic.gae_lambda=0.9"], ["--policy.algorithm=ppo", "--policy.critic.gae_lambda=0.9"]),
        (
            ["--policy.algorithm=ppo", "--policy.critic.coefficient=0.5"],
            ["--policy.algorithm=ppo", "--policy.critic.coefficient=0.5", "--policy.critic.backbone=shared"],
        ),
        (
            ["--policy.algorithm=ppo", "--policy.advantage.baseline=none", "--policy.critic.warmup_steps=2"],
            ["--policy.algorithm=grpo", "--policy.advantage.baseline=critic", "--policy.advantage.scale=none"],
        ),
    ],
)
def test_a_critics_setting_that_nothing_reads_is_refused(overrides: list[str], mended: list[str]) -> None:
    with pytest.raises(InputError, match=r"policy\.critic\..* has no effect"):
        check_settings(settings(*overrides))
    check_settings(settings(*mended))


def test_a_critic_needs_no_second_attempt() -> None:
    check_settings(settings("--policy.algorithm=ppo", "--rollout.group_size=1"))

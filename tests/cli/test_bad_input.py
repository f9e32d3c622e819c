"""Unusable input, end to end: one line that names the setting, the value and the fix; exit code 2; nothing written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from policies import write_toml
from processes import Death, Ended, command_line
from small_runs import small_config, small_settings

from posttrain.model.load import load_policy

WRONG_SIGNATURE = "def reward(prompt, response):\n    return 1.0\n"
NEEDS_A_COLUMN = "def reward(completions, solutions):\n    return [1.0 for _ in completions]\n"
RETURNS_ONE_NUMBER = "def reward(completions, **columns):\n    return 1.0\n"
RAISES = "def reward(completions, **columns):\n    return [1 / 0 for _ in completions]\n"
SYNTAX = "def reward(completions, **columns)\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    built = load_policy("tiny:llama")
    built.model.save_pretrained(folder)
    built.tokenizer.save_pretrained(folder)
    return folder


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def without_end(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text())
    del content["eos_token"]
    file.write_text(json.dumps(content))


def truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])


def not_a_model(folder: Path) -> None:
    (folder / "config.json").unlink()


def refused(ended: Ended, *words: str) -> str:
    """The one line of an input error, checked for its form."""
    assert ended.code == 2, f"{ended.out}\n{ended.err}"
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in ended.out + ended.err
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"
    return lines[0]


def attempt(folder: Path, settings: dict[str, Any], *words: str) -> None:
    """Train with ``settings``: it must be refused and leave the place as it was."""
    config = write_toml(folder / "run.toml", settings)
    place = folder / "runs"
    before = sorted(folder.rglob("*"))
    ended = command_line(["train", config, "--run", place / "deep" / "run"], folder.with_name(folder.name + "-log"))
    refused(ended, *words)
    assert not place.exists()
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_template, ("model.path", "chat template", "{folder}")),
        (without_end, ("model.path", "end-of-sequence", "eos_token", "{folder}")),
        (truncated_weights, ("model.path", "cannot be loaded", "{folder}")),
        (not_a_model, ("model.path", "config.json", "save_pretrained", "{folder}")),
        (shutil.rmtree, ("model.path", "no such folder", "{folder}")),
    ],
)
def test_a_model_that_cannot_be_used(
    damage: Callable[[Path], object], words: tuple[str, ...], saved: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    damage(folder)
    model = {"path": str(folder), "compute_dtype": "float32"}
    attempt(tmp_path, small_settings(tmp_path, model=model), *(w.format(folder=folder) for w in words))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (WRONG_SIGNATURE, ("'prompt'", "cannot be filled", "completions")),
        (NEEDS_A_COLUMN, ("'solutions'", "cannot be filled", "digit")),
        (RETURNS_ONE_NUMBER, ("on a trial call", "list")),
        (RAISES, ("raised on a trial call", "ZeroDivisionError")),
        (SYNTAX, ("cannot be loaded", "SyntaxError")),
    ],
)
def test_a_reward_function_that_cannot_be_used(source: str, words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "my_reward.py"
    file.write_text(source)
    settings = small_settings(tmp_path)
    settings["environments"]["toy"]["reward"] = f"{file}:reward"
    attempt(tmp_path, settings, "environments.toy.reward", f"{file}:reward", *words)


def rows(path: Path, *lines: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


TASK = {"id": "x", "prompt": "1", "digit": "1"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), ("environments.toy.path", "train.jsonl")),
        ((TASK, TASK | {"prompt": "2"}), ("environments.toy.id_column", "'x'", "Give every row its own id")),
        ((TASK | {"id": "e0"},), ("e0",)),
        (({"id": "x", "digit": "1"},), ("environments.toy.path", "'prompt'")),
    ],
)
def test_rows_that_cannot_be_used(lines: tuple[dict[str, Any], ...], words: tuple[str, ...], tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    rows(tmp_path / "train.jsonl", *lines)
    attempt(tmp_path, settings, *words)


def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    rows(tmp_path / "train.jsonl", TASK, TASK | {"id": "long", "prompt": "9" * 600})
    attempt(tmp_path, settings, "long", "512")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"rollout": {"group_size": 1}}, ("rollout.group_size", "= 1", "Set it to 2 or more")),
        ({"rollout": {"group_size": 4, "top_p": 0.9}}, ("rollout.top_p", "0.9", "Set rollout.top_p = 1.0")),
        ({"rollout": {"max_new_tokens": 600}}, ("512",)),
        ({"policy": {"algorithm": "gpro"}}, ("policy.algorithm", "'gpro'", "'grpo'")),
        ({"policy": {"learnin_rate": 1.0}}, ("learnin_rate", "learning_rate", "run.toml")),
        ({"model": {"path": "tiny:lama"}}, ("model.path", "tiny:lama", "tiny:llama")),
    ],
)
def test_settings_that_cannot_be_used(sections: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    attempt(tmp_path, small_settings(tmp_path, **sections), *words)


def test_nothing_held_out_although_evaluation_is_asked_for(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    del settings["environments"]["toy"]["evaluation_path"]
    settings["environments"]["toy"]["evaluation_fraction"] = 0.0
    attempt(tmp_path, settings, "evaluation", "'toy'", "evaluation.at_start")


def test_a_run_directory_that_exists_is_refused_unless_resumed(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    run = tmp_path / "run"
    first = command_line(
        ["train", config, "--run", run], tmp_path / "log", Death("posttrain.orchestration.loop:sample")
    )
    assert first.code == -9
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    line = refused(command_line(["train", config, "--run", run], tmp_path / "log"), "--run", str(run), "exists already")
    assert f"posttrain resume {run}" in line
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    refused(command_line(["train", config, "--run", tmp_path / "other"], tmp_path / "log"), "exists already")
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["mine.txt"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    refused(command_line(["train", config, "--run", file / "run"], tmp_path / "log"), "--run", str(file / "run"))
    assert file.read_text() == ""
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        refused(command_line(["train", config, "--run", closed / "run"], tmp_path / "log"), "--run", "writ")
        assert list(closed.iterdir()) == []


@pytest.mark.parametrize("command", ["resume", "report", "view", "eval"])
def test_what_is_no_run(command: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(command_line([command, empty], tmp_path / "log"), str(empty))
    assert list(empty.iterdir()) == []

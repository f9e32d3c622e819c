"""A relative path that is not there: the message says where it was looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policies import write_toml
from small_runs import small_settings

from posttrain.cli.main import run_command
from posttrain.cli.paths import explain_path
from posttrain.errors import InputError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings lie in ``project``, and the command is given in the folder above it."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "project"


def message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command(arguments) == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    return captured


def settings_with(project: Path, setting: str, value: str) -> str:
    settings = small_settings(project)
    table: dict[str, Any] = settings
    *holders, name = setting.split(".")
    for holder in holders:
        table = table[holder]
    table[name] = value
    return str(write_toml(project / "run.toml", settings).relative_to(project.parent))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("environments.toy.path", "data/rows.jsonl"),
        ("environments.toy.evaluation_path", "held_out_rows.jsonl"),
        ("environments.toy.reward", "rewards/mine.py:reward"),
        ("model.path", "models/mine"),
        ("model.tokenizer", "tokenizers/mine"),
    ],
)
def test_the_absolute_path_is_told_and_a_file_beside_the_settings_is_found(
    setting: str, value: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings_with(project, setting, value)
    file = value.partition(":")[0]
    line = message(capsys, "train", config, "--run", str(project / "run"))
    assert line.startswith(f"error: {setting} = '{value}': ")
    assert f"tried {project.parent / file}, because paths are relative to the current directory" in line
    assert "beside" not in line
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).touch()
    line = message(capsys, "train", config, "--run", str(project / "run"))
    assert f"There is one beside {config}: write 'project/{file}'." in line
    assert not (project / "run").exists()


def test_a_settings_file_and_a_run_that_are_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, name in (("train", "absent.toml"), ("resume", "runs/absent")):
        assert f"tried {project.parent / name}" in message(capsys, command, name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.path", "tiny:lama"),
        ("model.path", "package:none"),
        ("model.path", "/absent"),
        ("model.path", "project"),
        ("environments.a.reward", "package.module:function"),
        ("policy.algorithm", "gpro"),
        ("run", 3),
        ("environments.a.path", ""),
    ],
)
def test_other_errors_stay_as_they_are(setting: str, value: object, project: Path) -> None:
    error = InputError(setting, value, "is wrong", "Mend it")
    assert explain_path(error, ["train", "project/run.toml"]) is error

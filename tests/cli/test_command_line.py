"""The commands: what they pass on, what they print, how they exit."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from posttrain.cli.main import app, run_command
from posttrain.errors import InputError, PosttrainError
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import ExecutionPlan, RunInfo
from posttrain.settings import load_settings

CONFIG = '[model]\npath = "tiny:llama"\n[environments.a]\nkind = "arithmetic"\n'
COMMANDS = ("train", "resume", "eval", "report", "view", "algorithms", "ablate")


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG)
    return str(file)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Stand-ins for the layer below: the command line is tested without training anything."""
    seen: list[tuple[str, Any]] = []

    def recorder(name: str):
        def record(*arguments: Any, **keywords: Any) -> int:
            seen.append((name, (*arguments, *keywords.values())))
            return 0

        return record

    run = types.ModuleType("posttrain.orchestration.run")
    for name in ("train", "resume", "evaluate"):
        setattr(run, name, recorder(name))
    view = types.ModuleType("posttrain.faultmap.view")
    view.print_view = recorder("view")  # pyright: ignore
    monkeypatch.setitem(sys.modules, "posttrain.orchestration.run", run)
    monkeypatch.setitem(sys.modules, "posttrain.faultmap.view", view)
    return seen


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "posttrain.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return code, captured.err


def test_train_passes_settings_and_run(config: str, calls: list[tuple[str, Any]], tmp_path: Path) -> None:
    run = tmp_path / "r"
    code = run_command(
        ["train", config, "--run.seed", "3", "--run", str(run), "--policy.learning_rate=2e-5", "--evaluation.k", "[1]"]
    )
    assert code == 0
    [(name, (settings, path))] = calls
    assert (name, path) == ("train", run)
    assert (settings.run.seed, settings.policy.learning_rate, settings.evaluation.k) == (3, 2e-5, (1,))


def test_train_names_a_run_after_settings_and_date(config: str, calls: list[tuple[str, Any]], tmp_path: Path) -> None:
    assert run_command(["train", config, "--run.name", "sums", "--rundir.root", str(tmp_path)]) == 0
    path = calls[0][1][1]
    assert path.parent == tmp_path
    assert path.name.startswith("sums-2")


@pytest.mark.parametrize("code", [0, 1, 130])
def test_exit_code_of_the_run_is_passed_on(
    code: int, config: str, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["posttrain.orchestration.run"], "train", lambda *_: code)
    assert run_command(["train", config]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a.b", 1, "is wrong", "Mend it."), 2),
        (PosttrainError("the engine is gone"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_the_run_become_one_line(
    error: BaseException,
    code: int,
    config: str,
    calls: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(sys.modules["posttrain.orchestration.run"], "train", fail)
    assert failure(capsys, "train", config)[0] == code


def test_a_fault_of_ours_shows_its_trace(
    config: str,
    calls: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(sys.modules["posttrain.orchestration.run"], "train", fail)
    assert run_command(["train", config]) == 3
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


def test_settings_are_refused_before_anything_starts(
    config: str, calls: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "r"
    for override, word in (
        ("--policy.learning_rat=1", "learning_rate"),
        ("--rollout.group_size=1", "group_mean"),
        ("--rn=x", "neither"),
        ("--policy.algorithm=gpro", "'grpo'"),
    ):
        code, message = failure(capsys, "train", config, override, "--run", str(run))
        assert code == 2
        assert word in message
    assert not calls
    assert not run.exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["trian"], '"train"'),
        (["train"], "CONFIG"),
        (["train", "absent.toml"], "does not exist"),
        (["train", "--run.seed", "1", "x.toml"], "after the file"),
        (["resume", "absent"], "is not a directory"),
        (["eval", "tiny:llama"], "needs tasks"),
        (["view", "x", "--show", "funny"], "ungradable"),
        (["algorithms", "gpro"], "'grpo'"),
        (["report", "x", "--foo"], "--help"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str], calls: list[tuple[str, Any]]
) -> None:
    code, message = failure(capsys, *arguments)
    assert code == 2
    assert word in message
    assert not calls


def test_eval_of_a_model_takes_tasks_from_the_file(config: str, calls: list[tuple[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "base.json"
    assert run_command(["eval", "tiny:qwen3", config, "--evaluation.samples", "32", "--out", str(out)]) == 0
    [(name, (settings, target))] = calls
    assert (name, target) == ("evaluate", out)
    assert (settings.model.path, settings.evaluation.samples) == ("tiny:qwen3", 32)


def a_run(path: Path, config: str, finished: bool) -> str:
    # As a run stores them: what was written, and beside it what "auto" became.
    settings = {**load_settings(config).to_mapping(), "resolved": {"machine": {"device": "cpu"}}}
    info = RunInfo("r", 0, 0.0, settings, ExecutionPlan("cpu", 1, "float32", "float32", 512))
    run = RunDirectory.create(path, info)
    if finished:
        run.model_path.mkdir(exist_ok=True)
        (run.model_path / "config.json").write_text("{}")
    return str(path)


def test_eval_of_a_run_takes_its_own_settings(config: str, calls: list[tuple[str, Any]], tmp_path: Path) -> None:
    run = a_run(tmp_path / "done", config, finished=True)
    assert run_command(["eval", run, "--evaluation.samples=20"]) == 0
    settings = calls[0][1][0]
    assert settings.model.path == str(tmp_path / "done" / "model")
    assert settings.evaluation.samples == 20
    assert settings.environments == load_settings(config).environments


def test_eval_of_an_unfinished_run(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "begun", config, finished=False)
    code, message = failure(capsys, "eval", run)
    assert code == 2
    assert "posttrain resume" in message


def test_a_missing_extra_is_named(
    config: str,
    calls: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(sys.modules["posttrain.orchestration.run"], "train", fail)
    code, message = failure(capsys, "train", config)
    assert code == 2
    assert "posttrain[train]" in message


def test_output_may_be_cut_off() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "posttrain.cli.main", "algorithms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_view_passes_its_choices(calls: list[tuple[str, Any]]) -> None:
    assert run_command(["view", "r", "--step", "4", "--show", "worst", "--limit", "2"]) == 0
    assert calls == [("view", (Path("r"), 4, "worst", 2))]


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert run_command([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert "For example:" in text
        assert f"posttrain {name}" in text
    assert set(COMMANDS) <= set(app)


def test_help_and_algorithms_need_no_torch() -> None:
    probe = (
        "import sys\n"
        "from posttrain.cli.main import run_command\n"
        "codes = [run_command(a) for a in (['--help'], ['train', '--help'], ['algorithms'], ['algorithms', 'dapo'])]\n"
        "assert codes == [0, 0, 0, 0], codes\n"
        "heavy = {'torch', 'transformers', 'datasets', 'reasoning_gym'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_algorithms_print_every_row_and_one_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    from posttrain.settings.algorithms import ROWS

    assert run_command(["algorithms"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}  " in text for name in ROWS)
    assert run_command(["algorithms", "dapo"]) == 0
    text = capsys.readouterr().out
    for word in ("arXiv 2503.14476", "clip_high", "0.28", "pitfalls", "mixed_success"):
        assert word in text


def test_the_command_as_a_process() -> None:
    done = command("train", "absent.toml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: settings file = 'absent.toml'")
    assert command("--version").stdout.strip() == __import__("posttrain").__version__

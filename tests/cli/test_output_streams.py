"""Outputs that go away, cannot hold a character, or are no files."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import small_config

from posttrain.cli.main import run_command
from posttrain.errors import InputError
from posttrain.orchestration.progress import Progress, StepSummary
from posttrain.rundir.files import check_output, replace_atomically

COMMAND = [sys.executable, "-m", "posttrain.cli.main"]


def test_training_goes_on_when_its_reader_leaves_and_help_is_no_finding(tmp_path: Path) -> None:
    config = small_config(tmp_path, run={"steps": 2, "threads": 1, "device": "cpu"})
    pipes = "{ %s; echo $? > %s; } | head -1 > /dev/null"
    train = " ".join([*COMMAND, "train", str(config), "--run", str(tmp_path / "run")])
    show = " ".join([*COMMAND, "--help"])
    subprocess.run(["bash", "-c", pipes % (train, tmp_path / "train")], check=True, timeout=600)
    subprocess.run(["bash", "-c", "sleep 0 | " + pipes % (show, tmp_path / "help")], check=True, timeout=600)
    assert (tmp_path / "train").read_text() == "0\n"
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    assert (tmp_path / "help").read_text() == "0\n"
    closed = f"{' '.join([*COMMAND, 'view', str(tmp_path / 'run')])} | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", closed], check=True, timeout=600, capture_output=True, text=True)
    assert ended.stdout == "0\n"
    assert ended.stderr == ""
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    seen = subprocess.run(
        [*COMMAND, "view", str(tmp_path / "run")], timeout=600, capture_output=True, check=False, env=ascii_only
    )
    assert seen.returncode == 0, seen.stderr.decode()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"),
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line_and_no_fault_of_the_program(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("posttrain.faultmap.report.write_report", full)
    assert run_command(["report", str(tmp_path)]) == 3
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "the disk is full" in line
    assert "posttrain resume" in line


@pytest.mark.parametrize("columns", [1, 10, 20, 24, 40, 200])
def test_no_terminal_is_too_narrow(columns: int) -> None:
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), force_terminal=True, width=columns, highlight=False)
    with Progress(3, console=console) as progress:
        progress.phase("rollout")
        progress.step(StepSummary(1, 0.5, 3.0, 0.1, 10.0, 10.0, 0.1, 0.0))
        progress.evaluation("toy", 1, 0.5, 0.1, 0.9)


def test_what_is_no_file_is_neither_replaced_nor_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a file"):
        replace_atomically(pipe, lambda path: path.write_text("x") and None)
    assert pipe.is_fifo()
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    replace_atomically(link, lambda path: path.write_text("new") and None)
    assert link.is_symlink()
    assert real.read_text() == "new"
    for bad in (pipe, tmp_path, real / "below", tmp_path / "real" / "a" / "b"):
        with pytest.raises(InputError, match="--out"):
            check_output("--out", bad)
    for good in (real, link, tmp_path / "new", tmp_path / "a" / "b" / "new"):
        check_output("--out", good)
    assert not (tmp_path / "a").exists()


def test_eval_names_an_unusable_out_before_it_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path)
    assert run_command(["eval", "tiny:llama", str(config), "--out", str(tmp_path)]) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith("error: --out")
    assert seen.out == ""
    assert run_command(["view", str(tmp_path), "--limit", "0"]) == 2
    assert "--limit" in capsys.readouterr().err

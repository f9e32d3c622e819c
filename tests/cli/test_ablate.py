"""``posttrain ablate`` with real runs in processes of their own: results, resume, Ctrl-C, a run that dies."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from posttrain.cli.main import run_command
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.files import read_json_object

SHORT = {"steps": 2, "threads": 1, "device": "cpu"}


def result(folder: Path) -> dict[str, Any]:
    return read_json_object(folder / "ablation.json")


def times(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("run.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablation")
    config = small_config(folder, run=SHORT, checkpoint={"every": 0})
    arguments = [str(config), "--change", "policy.algorithm=grpo,dr_grpo", "--seeds", "2", "--run.seed", "3"]
    assert run_command(["ablate", *arguments, "--out", str(folder / "out")]) == 0
    return folder


def test_every_run_is_an_ordinary_run_with_its_setting_and_seed(finished: Path) -> None:
    data = result(finished / "out")
    assert data["complete"] is True
    assert [(run["arm"], run["seed"]) for run in data["runs"]] == [
        ("base", 3),
        ("policy.algorithm=dr_grpo", 3),
        ("base", 4),
        ("policy.algorithm=dr_grpo", 4),
    ]
    for run in data["runs"]:
        directory = RunDirectory.open(finished / "out" / run["run"])
        info = directory.info()
        assert info.seed == run["seed"]
        assert info.settings["policy"]["algorithm"] == ("grpo" if run["arm"] == "base" else "dr_grpo")
        summary = directory.evaluation_summary()
        assert summary is not None
        after = summary["environments"]["toy"]["after"]
        assert run["held_out_reward"] == pytest.approx(after["reward"]["value"])
        assert run["held_out_success"] == pytest.approx(after["pass_at"]["1"]["value"])
        rows = [json.loads(line) for line in (directory.metrics_path).read_text().splitlines()]
        last = [row["values"]["reward/mean"] for row in rows if row["phase"] == "train" and row["step"] == 2]
        assert [run["training_reward"]] == pytest.approx(last)
        assert run["seconds"] > 0
    first, second = (c["difference"]["by_seed"] for c in data["comparisons"][:1] for _ in range(2))
    assert (
        first
        == second
        == {
            "3": pytest.approx(data["runs"][1]["held_out_reward"] - data["runs"][0]["held_out_reward"]),
            "4": pytest.approx(data["runs"][3]["held_out_reward"] - data["runs"][2]["held_out_reward"]),
        }
    )


def test_what_is_finished_is_not_run_again_and_seeds_can_be_added(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = times(finished / "out")
    base = [str(finished / "run.toml"), "--change", "policy.algorithm=dr_grpo", "--run.seed=3"]
    code = run_command(["ablate", *base, "--seeds", "1", "--out", str(finished / "out"), "--json"])
    printed = capsys.readouterr()
    assert code == 0
    assert json.loads(printed.out)["seeds"] == [3]
    assert "no interval" in printed.err
    assert "2 of 2 runs are finished already" in printed.err
    assert times(finished / "out") == before


def test_a_directory_of_other_settings_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = times(finished / "out")
    arguments = [str(finished / "run.toml"), "--change", "policy.algorithm=dr_grpo", "--run.seed=3"]
    for more in (["--policy.learning_rate", "1e-4"], ["--run.steps", "3"]):
        code = run_command(["ablate", *arguments, *more, "--out", str(finished / "out")])
        error = capsys.readouterr().err
        assert code == 2
        assert more[0].removeprefix("--") in error
        assert "another --out" in error
    assert run_command(["ablate", *arguments, "--out", str(finished)]) == 2
    assert "holds no ablation.json" in capsys.readouterr().err
    assert times(finished / "out") == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("policy.algoritm=grpo", "Did you mean policy.algorithm?"),
        ("model.path=absent", "(model.path=absent) there is no such folder"),
        ("policy.algorithm=dr_grpo,reinforced", "no such algorithm"),
    ],
)
def test_nothing_is_written_when_an_arm_would_not_start(
    tmp_path: Path, change: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path, run=SHORT)
    assert run_command(["ablate", str(config), "--change", change, "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_dies_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path, run=SHORT)
    out = tmp_path / "out"
    blocked = out / "policy.algorithm=dr_grpo" / "seed-0"
    arguments = ["ablate", str(config), "--change", "policy.algorithm=dr_grpo", "--seeds", "1", "--out", str(out)]
    # A file where the run's directory should be: the process of that run alone is refused.
    blocked.parent.mkdir(parents=True)
    blocked.write_text("")
    (out / "ablation.json").write_text("{}")
    assert run_command(arguments) == 3
    data = result(out)
    assert [run["state"] for run in data["runs"]] == ["finished", "failed"]
    assert "exists already" in data["runs"][1]["detail"]
    assert data["comparisons"] == []
    blocked.unlink()
    assert run_command(arguments) == 0
    assert result(out)["complete"] is True


def test_ctrl_c_saves_says_how_to_go_on_and_that_goes_on(tmp_path: Path) -> None:
    config = small_config(tmp_path, run=SHORT | {"steps": 400}, checkpoint={"every": 0})
    arguments = [str(config), "--change", "policy.algorithm=dr_grpo", "--seeds", "1", f"--out={tmp_path / 'out'}"]
    program = [sys.executable, "-m", "posttrain.cli.main"]
    process = subprocess.Popen(
        [*program, "ablate", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "out" / "base" / "seed-0" / "metrics.jsonl"
    limit = time.monotonic() + 300
    while not (metrics.is_file() and metrics.stat().st_size > 0):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == ""
    run = RunDirectory.open(tmp_path / "out" / "base" / "seed-0")
    assert run.info().attempts[-1].outcome == "interrupted"
    data = result(tmp_path / "out")
    assert [r["state"] for r in data["runs"]] == ["unfinished", "pending"]
    (told,) = [line for line in error.splitlines() if line.startswith("stopped; go on with: ")]
    command = shlex.split(told.removeprefix("stopped; go on with: "))
    assert command[:2] == ["posttrain", "ablate"]
    again = subprocess.Popen([*program, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(run.info().attempts) < 2:
        assert again.poll() is None, again.communicate()
        time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    _, error = again.communicate(timeout=300)
    assert again.returncode == 130
    assert "base, seed 0, resumed" in error
    assert run.info().attempts[-1].resumed_from_step is not None

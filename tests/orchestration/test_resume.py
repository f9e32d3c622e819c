"""Killed anywhere, interrupted, or with a damaged checkpoint: a resumed run ends as the uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import Death, command_line
from small_runs import fingerprint, lineage_problems, measured, sampled, small_config

from posttrain.model.load import load_policy
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.reading import load_run

RUN = "posttrain.orchestration.run"
LOOP = "posttrain.orchestration.loop"
CHECKPOINTS = "posttrain.rundir.checkpoints"

KILLS = [
    Death(f"{RUN}:RunDirectory.create", after=True),
    Death(f"{LOOP}:evaluate_policy", after=True),
    Death(f"{LOOP}:Loop._select", call=4, after=True),
    Death("posttrain.policy.trainer:Trainer.step", call=3, after=True),
    Death(f"{CHECKPOINTS}:_rename_over", call=2),
    Death(f"{CHECKPOINTS}:_rename_over", call=1, after=True),
    Death("posttrain.rundir.metrics:MetricsWriter.write", call=6),
    Death("posttrain.orchestration.outputs:save_merged", after=True),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    run = folder / "run"
    ended = command_line(["train", small_config(folder), "--run", run], folder / "log")
    assert ended.code == 0, ended.err
    before = load_policy("tiny:llama").model.state_dict()["model.layers.0.mlp.up_proj.weight"]
    after = load_policy(str(run / "model")).model.state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert float((before - after).abs().max()) > 1e-3, "nothing was learnt, so equal weights would prove nothing"
    return run


def assert_same(run: Path, reference: Path) -> None:
    assert fingerprint(run) == fingerprint(reference)
    assert sampled(run) == sampled(reference)
    assert measured(run) == measured(reference)
    assert lineage_problems(run) == []
    loaded = load_run(run)
    assert loaded.problems == []
    assert loaded.evaluation_summary == load_run(reference).evaluation_summary
    assert [p.name for p in run.iterdir() if p.name.startswith(".") and p.name != ".lock"] == []
    assert [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("death", KILLS, ids=lambda d: f"{d.target.rpartition(':')[2]}-{d.call}{'-after' * d.after}")
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(death: Death, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = command_line(["train", small_config(tmp_path), "--run", run], tmp_path / "log", death)
    assert killed.code == -signal.SIGKILL, killed.err
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert_same(run, reference)
    attempts = RunDirectory.open(run).info().attempts
    assert attempts[-1].outcome == "finished"


def test_killed_twice_and_at_a_random_time_from_outside(reference: Path, tmp_path: Path) -> None:
    """A process of its own, as a user starts it, killed some time after its first step."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "posttrain.cli.main", "train", str(small_config(tmp_path)), "--run", str(run)]
    with (tmp_path / "log.txt").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 600
        while not (run / "trajectories" / "step_000001.parquet").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(random.Random().uniform(0.0, 0.3))
        process.kill()
    again = command_line(["resume", run], tmp_path / "log", Death(f"{LOOP}:build_batch", call=1, after=True))
    # Where the first kill came late there is no further batch to build.
    assert again.code in (-signal.SIGKILL, 0), again.err
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert_same(run, reference)


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_exits_130(call: int, number: int, reference: Path, tmp_path: Path) -> None:
    if call == 1 and number == signal.SIGTERM:
        pytest.skip("one signal in the first step is enough")
    run = tmp_path / "run"
    death = Death(f"{LOOP}:sample", call=call, signal_number=number)
    stopped = command_line(["train", small_config(tmp_path), "--run", run], tmp_path / "log", death)
    assert stopped.code == 130, stopped.err
    assert f"stopped after step {call}; go on with: posttrain resume" in " ".join(stopped.out.split())
    assert (run / "checkpoints" / f"step_{call:06d}" / "manifest.json").is_file()
    assert not (run / "model").exists()
    assert RunDirectory.open(run).info().attempts[-1].outcome == "interrupted"
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert_same(run, reference)


def test_a_damaged_checkpoint_is_named_skipped_and_made_again(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    death = Death(f"{LOOP}:sample", call=5)
    assert command_line(["train", small_config(tmp_path), "--run", run], tmp_path / "log", death).code == -9
    damaged = run / "checkpoints" / "step_000004" / "trainer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    ended = command_line(["resume", run], tmp_path / "log", Death(f"{LOOP}:sample", call=3))
    assert ended.code == -9, ended.err
    out = " ".join(ended.out.split())
    assert "checkpoint step_000004 is skipped: step_000004: trainer.safetensors has" in out
    assert "resuming after step 2" in out
    # Step 4 was reached again, so its checkpoint is whole again and the one to go on from.
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert "resuming after step 4" in ended.out
    assert_same(run, reference)


def test_all_checkpoints_damaged_starts_again_with_the_same_seeds(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    death = Death(f"{LOOP}:sample", call=4)
    assert command_line(["train", small_config(tmp_path), "--run", run], tmp_path / "log", death).code == -9
    for manifest in run.glob("checkpoints/step_*/manifest.json"):
        manifest.write_text("{")
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert "starts again from its first step" in ended.out
    assert_same(run, reference)


def test_checkpoints_without_a_journal_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    death = Death(f"{LOOP}:sample", call=4)
    assert command_line(["train", small_config(tmp_path), "--run", run], tmp_path / "log", death).code == -9
    for file in run.glob("journal.sqlite*"):
        file.unlink()
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 2
    assert "journal.sqlite is missing" in " ".join(ended.err.split())


def test_a_finished_run_is_left_as_it_is(reference: Path, tmp_path: Path) -> None:
    files = {p: p.stat().st_mtime_ns for p in reference.rglob("*") if p.is_file()}
    ended = command_line(["resume", reference], tmp_path)
    assert ended.code == 0, ended.err
    assert "is finished" in ended.out
    assert {p: p.stat().st_mtime_ns for p in reference.rglob("*") if p.is_file()} == files


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    death = Death(f"{LOOP}:sample", call=2, signal_number=signal.SIGSTOP)
    config = small_config(tmp_path)
    with (tmp_path / "log.txt").open("w") as log:
        script = (
            "import sys; from processes import Death, _plant; from posttrain.cli.main import run_command;"
            f"_plant(Death({death.target!r}, 2, signal_number={int(signal.SIGSTOP)}));"
            "sys.exit(run_command(sys.argv[1:]))"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
        first = subprocess.Popen(
            [sys.executable, "-c", script, "train", str(config), "--run", str(run)],
            stdout=log,
            stderr=log,
            env=environment,
        )
        try:
            os.waitpid(first.pid, os.WUNTRACED)
            second = command_line(["resume", run], tmp_path / "second")
        finally:
            first.kill()
            first.wait()
    assert second.code == 2
    assert "another process" in second.err
    assert second.err.count("\n") == 1
    assert json.loads((run / "run.json").read_text())["attempts"][-1]["attempt"] == 1

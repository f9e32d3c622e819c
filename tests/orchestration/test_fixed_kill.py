"""A run on given rows that is killed anywhere ends as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixed_runs import fixed_settings
from policies import write_toml
from processes import Death, command_line
from small_runs import fingerprint, measured

FIXED = "posttrain.orchestration.fixed_data"
DEATHS = [
    Death(f"{FIXED}.run:write_references"),
    Death(f"{FIXED}.references:save_file", after=True),
    Death(f"{FIXED}.loop:fixed_update", call=4),
    Death(f"{FIXED}.loop:write_held_out", call=2),
    Death("posttrain.rundir.checkpoints:_rename_over", call=2),
    Death("posttrain.rundir.checkpoints:_rename_over", call=2, after=True),
    Death(f"{FIXED}.run:save_model", after=True),
]


def config(folder: Path) -> Path:
    settings = fixed_settings(
        folder / "data", "kto", run={"steps": 6}, checkpoint={"every": 2}, evaluation={"every": 3}
    )
    return write_toml(folder / "run.toml", settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    ended = command_line(["train", config(folder), "--run", folder / "run"], folder / "log")
    assert ended.code == 0, ended.err
    return folder / "run"


@pytest.mark.parametrize("death", DEATHS, ids=lambda d: f"{d.target.rpartition(':')[2]}-{d.call}-{d.after}")
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(whole: Path, tmp_path: Path, death: Death) -> None:
    run = tmp_path / "run"
    killed = command_line(["train", config(tmp_path), "--run", run], tmp_path / "killed", death)
    assert killed.code == -death.signal_number, killed.err
    ended = command_line(["resume", run], tmp_path / "resumed")
    assert ended.code == 0, ended.err
    assert fingerprint(run) == fingerprint(whole)
    assert measured(run) == measured(whole)
    for folder in (run, run / "checkpoints"):
        assert [p.name for p in folder.iterdir() if p.name.startswith(".") and p.name != ".lock"] == []

"""Settings edited into ``run.json`` are refused by name, with both values and the fix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from processes import Death, Ended, command_line
from small_runs import small_config

Place = tuple[str, ...]
SEEDS: tuple[Place, ...] = (("seed",), ("settings", "run", "seed"), ("settings", "resolved", "settings", "run", "seed"))


def killed_run(folder: Path, call: int) -> Path:
    run = folder / "run"
    death = Death("posttrain.orchestration.loop:sample", call=call)
    assert command_line(["train", small_config(folder), "--run", run], folder / "log", death).code == -9
    return run


@pytest.fixture(scope="module")
def with_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = killed_run(tmp_path_factory.mktemp("late"), 4)
    assert (run / "checkpoints" / "step_000002").is_dir()
    return run


@pytest.fixture(scope="module")
def without_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_run(tmp_path_factory.mktemp("early"), 1)


def edited(run: Path, folder: Path, value: Any, *places: Place) -> Path:
    copy = folder / "edited"
    shutil.copytree(run, copy)
    content = json.loads((copy / "run.json").read_text())
    for *holders, name in places:
        table = content
        for holder in holders:
            table = table[holder]
        assert name in table
        table[name] = value
    (copy / "run.json").write_text(json.dumps(content))
    return copy


def refused(run: Path, folder: Path) -> str:
    before = (run / "run.json").read_bytes()
    ended: Ended = command_line(["resume", run], folder / "log")
    assert ended.code == 2, ended.err
    assert ended.err.count("\n") == 1
    assert (run / "run.json").read_bytes() == before
    return ended.err


@pytest.mark.parametrize("places", [SEEDS, SEEDS[:1], SEEDS[1:2], SEEDS[2:]])
def test_an_edited_seed_names_the_one_the_run_began_with(
    places: tuple[Place, ...], with_checkpoint: Path, tmp_path: Path
) -> None:
    line = refused(edited(with_checkpoint, tmp_path, 77, *places), tmp_path)
    assert line.startswith("error: run.seed = 77: the run and its checkpoints began with 0")
    assert "Set it back to 0" in line
    assert str(tmp_path / "edited" / "run.json") in line
    assert "cursor" not in line


def test_without_a_checkpoint_an_edited_seed_still_contradicts_the_other_copies(
    without_checkpoint: Path, tmp_path: Path
) -> None:
    line = refused(edited(without_checkpoint, tmp_path, 77, SEEDS[1]), tmp_path)
    assert line.startswith("error: run.seed = 77: ")
    assert "0 as seed, 77 as settings.run.seed" in line


def test_any_other_edited_setting_is_named_too(with_checkpoint: Path, tmp_path: Path) -> None:
    line = refused(edited(with_checkpoint, tmp_path, 0.5, ("settings", "policy", "learning_rate")), tmp_path)
    assert line.startswith("error: policy.learning_rate = 0.5: ")
    assert "0.002" in line

"""posttrain's own run directory, written by the real writers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import build_run

from posttrain.errors import InputError
from posttrain.faultmap.readers import read_history
from posttrain.signals.framework import Framework


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "run", steps=6).path


def test_courses_facts_and_samples(run: Path) -> None:
    history = read_history(run)
    assert history.framework is Framework.POSTTRAIN
    assert history.course("reward/mean").steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert math.isnan(history.course("policy/grad_norm").values[2]), "a NaN that was logged stays one"
    held_out = history.course("evaluation/arithmetic/reward_mean")
    assert held_out.steps.tolist() == [0, 3, 6]
    assert history.unmapped == ()
    assert history.samples is not None
    samples = history.samples.read(2)
    assert len(samples) == 36
    first = samples[0]
    assert first.step == 2
    assert first.completion
    assert first.prompt.startswith("What is")
    assert first.tokens is not None
    assert first.tokens > 0
    assert first.finish_reason == "stop" or first.finish_reason == "length"
    assert set(first.parts) == {"parsable", "correct"}
    assert history.samples.read(99) == []


def test_both_clip_sides_are_added(run: Path) -> None:
    history = read_history(run)
    both = history.course("policy/clip_fraction_low").values + history.course("policy/clip_fraction_high").values
    np.testing.assert_array_equal(history.course("policy/clip_fraction").values, both)


def test_the_metrics_file_stands_for_its_run(run: Path) -> None:
    assert read_history(run / "metrics.jsonl").source == str(run)


def test_a_folder_that_holds_one_run(run: Path) -> None:
    assert read_history(run.parent).source == str(run)


def test_a_folder_that_holds_two_runs_is_refused(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(run, tmp_path / name)
    with pytest.raises(InputError, match="several runs"):
        read_history(tmp_path)


def test_metrics_alone_are_read_without_their_run(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "metrics.jsonl", tmp_path / "metrics.jsonl")
    history = read_history(tmp_path / "metrics.jsonl")
    assert history.framework is Framework.POSTTRAIN
    np.testing.assert_array_equal(
        history.course("policy/grad_norm").values, read_history(run).course("policy/grad_norm").values
    )


def test_settings_nobody_can_read_leave_the_courses(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    info = json.loads(path.read_text())
    info["settings"] = {"run": {"steps": "many"}}
    path.write_text(json.dumps(info))
    history = read_history(tmp_path / "run")
    assert history.has("reward/mean")
    assert history.facts.group_size is None
    assert any("settings cannot be read" in problem for problem in history.problems)


def test_damaged_trajectories_are_a_problem_of_the_samples_alone(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "trajectories" / "step_000002.parquet").write_bytes(b"PAR1")
    history = read_history(tmp_path / "run")
    assert history.samples is not None
    assert history.samples.read(2) == []
    assert len(history.samples.read(3)) == 36

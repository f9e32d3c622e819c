"""A damaged run is read as far as it goes, and what is damaged is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_rundir_directory import INFO, MACHINE
from test_rundir_trajectories import sample

from posttrain.errors import InputError
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.metrics import MetricsWriter
from posttrain.rundir.reading import load_run, resume_points


def make_run(path: Path) -> RunDirectory:
    run = RunDirectory.create(path, INFO)
    first = run.begin_attempt(MACHINE)
    with MetricsWriter(run.metrics_path, first.attempt) as writer:
        for step in (1, 2, 3):
            writer.write(step, step, "train", {"reward/mean": 0.1})
    second = run.begin_attempt(MACHINE, resumed_from_step=1)
    with MetricsWriter(run.metrics_path, second.attempt) as writer:
        writer.write(2, 2, "train", {"reward/mean": 0.2})
    run.write_step(1, [sample()], ["2"])
    run.write_step(2, [sample(None)])
    run.write_evaluation(0, "sums", [sample()])
    run.engine_path.write_text('{"time": 1.0, "attempt": 1}\n')
    run.write_evaluation_summary({"gain": 0.4})
    return run


def test_a_whole_run_is_read_without_problems(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.problems == []
    assert run.info is not None
    assert run.info.name == "demo"
    assert resume_points(run.info) == {1: -1, 2: 1}
    steps, values = run.metrics.series("reward/mean")
    assert (steps.tolist(), values.tolist()) == ([1, 2], [0.1, 0.2])
    assert [s.time for s in run.engine.samples] == [1.0]
    assert run.evaluation_summary == {"gain": 0.4}
    assert [s.completion for s in run.trajectories(1)] == ["2"]
    assert len(run.evaluation(0, "sums")) == 1
    assert run.problems == []


def test_a_run_that_has_just_begun_has_no_problems(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", INFO)
    run = load_run(tmp_path / "run")
    assert run.problems == []
    assert run.metrics.rows == ()
    assert run.evaluation_summary is None


def test_every_damaged_file_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    directory.info_path.write_text("{")
    directory.evaluation_summary_path.write_text("[1]")
    with directory.engine_path.open("a") as file:
        file.write("{nonsense\n")
    with directory.metrics_path.open("a") as file:
        file.write('{"step": 4, "pol')
    directory.trajectory_path(1).write_bytes(b"PAR1")
    run = load_run(tmp_path / "run")
    assert run.info is None
    assert run.metrics.series("reward/mean")[0].tolist() == [1, 2]
    assert len(run.engine.samples) == 1
    assert run.trajectories(1) == []
    assert run.trajectories(1) == []
    assert len(run.trajectories(2)) == 1
    assert run.trajectories(9) == []
    named = "\n".join(run.problems)
    for text in ("run.json", "summary.json", "engine.jsonl:2", "metrics.jsonl:5", "step_000001.parquet", "of step 9"):
        assert text in named
    assert len(run.problems) == 6


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no run\.json"):
        load_run(tmp_path)

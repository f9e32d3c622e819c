"""Trajectories survive the disk unchanged."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rundir_strategies import trajectories

from posttrain.rundir.files import DamagedFileError
from posttrain.rundir.schema import ARROW_SCHEMA, LATER
from posttrain.rundir.trajectories import read_stored, read_trajectories, write_trajectories
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    RecordError,
    SamplingParams,
    Segment,
    Task,
    TokenColumns,
    Trajectory,
)


def assert_equal(a: object, b: object, where: str = "trajectory") -> None:
    """Equality down to dtype and sign of zero; NaN equals NaN."""
    assert type(a) is type(b), where
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert a.dtype == b.dtype, where
        np.testing.assert_array_equal(a, b, err_msg=where)
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_equal(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    elif isinstance(a, list):
        assert isinstance(b, list)
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def sample(reward: float | None = 1.0, name: str = "t/0/0/0") -> Trajectory:
    task = Task("t", (Message("user", "What is 3 - 1?"),), 2, "sums", {"pair": [1, 3]})
    trajectory = Trajectory(name, "t/0/0", task, SamplingParams(8, seed=5, stop_token_ids=(2,)))
    trajectory.append(Segment(Origin.PROMPT, np.array([5, 6, 7], np.int32)))
    trajectory.append(Segment(Origin.MODEL, np.array([8], np.int32), np.array([-0.5], np.float32), 3))
    trajectory.append(Segment(Origin.MODEL, np.array([9], np.int32), np.array([-0.25], np.float32), 4))
    trajectory.append(Segment(Origin.ENVIRONMENT, np.array([10, 11], np.int32)))
    trajectory.append(Segment(Origin.MODEL, np.array([2], np.int32), np.array([-2.0], np.float32), 4))
    trajectory.finish_reason = FinishReason.STOP
    trajectory.grade = (
        Grade(GradeStatus.UNGRADABLE, reason="no number")
        if reward is None
        else Grade(GradeStatus.GRADED, reward, {"correct": reward, "format": None}, "last integer")
    )
    scored = np.where(trajectory.model_mask, -1.0, np.nan).astype(np.float32)
    trajectory.set_columns(TokenColumns(trainer_logprob=scored, loss_mask=trajectory.model_mask))
    return trajectory


@settings(max_examples=80)
@given(st.lists(trajectories(), max_size=4))
def test_any_trajectory_comes_back_unchanged(originals: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step_000001.parquet"
        write_trajectories(path, originals)
        assert_equal(read_trajectories(path), originals)


def test_a_failed_trajectory_without_tokens_comes_back(tmp_path: Path) -> None:
    empty = Trajectory("t/0/0/0", "t/0/0", Task("t", (), None, "e"), SamplingParams(8), failure="engine lost")
    empty.finish_reason = FinishReason.FAILED
    empty.grade = Grade(GradeStatus.FAILED, reason="nothing to grade")
    write_trajectories(tmp_path / "x.parquet", [sample(), empty, sample(None)])
    back = read_trajectories(tmp_path / "x.parquet")
    assert_equal(back, [sample(), empty, sample(None)])


def test_other_tools_see_aligned_columns_and_nulls(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "x.parquet", [sample(), sample(None)], ["2", "<b>"], {"t/0/0": "no spread"})
    first, second = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert first["token_id"] == [5, 6, 7, 8, 9, 10, 11, 2]
    assert first["origin"] == [0, 0, 0, 1, 1, 2, 2, 1]
    assert first["policy_version"] == [None, None, None, 3, 4, None, None, 4]
    assert first["sampler_logprob"] == [None, None, None, -0.5, -0.25, None, None, -2.0]
    assert first["trainer_logprob"] == [None, None, None, -1.0, -1.0, None, None, -1.0]
    assert first["reference_logprob"] is None
    assert first["advantage"] is None
    assert first["reward"] == 1.0
    assert first["reward_parts"] == [("correct", 1.0), ("format", None)]
    assert (second["reward"], second["grade_status"], second["grade_reason"]) == (None, "ungradable", "no number")
    assert (first["completion"], second["completion"]) == ("2", "<b>")
    assert first["group_discard_reason"] == "no spread"
    stored = read_stored(tmp_path / "x.parquet")
    assert [s.completion for s in stored] == ["2", "<b>"]
    assert stored[1].group_discard_reason == "no spread"


def test_a_file_written_before_a_column_was_added_still_reads(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "x.parquet", [sample(), sample(None)])
    table = pq.read_table(tmp_path / "x.parquet")
    for name in LATER:
        pq.write_table(table.drop_columns([name]), tmp_path / "old.parquet")
        back = read_trajectories(tmp_path / "old.parquet")
        assert_equal(back, [sample(), sample(None)])
        assert getattr(back[0].columns, name) is None


def test_the_schema_on_disk_is_the_documented_one(tmp_path: Path) -> None:
    for originals in ([], [sample()]):
        write_trajectories(tmp_path / "x.parquet", originals)
        assert pq.read_schema(tmp_path / "x.parquet").equals(ARROW_SCHEMA)
    page = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text(encoding="utf-8")
    missing = [name for name in ARROW_SCHEMA.names if f"`{name}`" not in page]
    assert not missing, "run: python -m posttrain.rundir.reference"


def test_a_redone_step_replaces_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [sample(), sample()])
    write_trajectories(path, [sample(0.0)])
    assert [t.reward for t in read_trajectories(path)] == [0.0]
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [sample()])
    bad = sample()
    bad.columns.advantage = np.zeros(3, np.float32)
    with pytest.raises(RecordError, match=r"t/0/0/0: column advantage has shape \(3,\), expected \(8,\)"):
        write_trajectories(path, [bad])
    assert_equal(read_trajectories(path), [sample()])


def test_a_process_killed_while_writing_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_rundir_trajectories import sample
        from posttrain.rundir.trajectories import write_trajectories
        rows = [sample(float(i), f"t/0/0/{{i}}") for i in range(200)]
        while True:
            write_trajectories(Path({str(path)!r}), rows)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 30
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for delay in (0.01, 0.03, 0.05):
            time.sleep(delay)
            assert len(read_trajectories(path)) == 200
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(read_trajectories(path)) == 200


def test_texts_out_of_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="1 completions for 2"):
        write_trajectories(tmp_path / "x.parquet", [sample(), sample()], ["one"])
    assert not os.listdir(tmp_path)


def test_task_data_json_cannot_hold_is_refused_by_task(tmp_path: Path) -> None:
    odd = sample()
    odd.task = dataclasses.replace(odd.task, metadata={"when": object()})
    with pytest.raises(RecordError, match="task t: gold and metadata must be JSON-compatible"):
        write_trajectories(tmp_path / "x.parquet", [odd])


def test_a_seed_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    odd = sample()
    odd.sampling = dataclasses.replace(odd.sampling, seed=2**63)
    with pytest.raises(RecordError, match="column seed"):
        write_trajectories(tmp_path / "x.parquet", [odd])


def test_a_completion_with_a_lone_surrogate_is_shown_not_dropped(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "x.parquet", [sample()], ["a\ud800b"])
    assert read_stored(tmp_path / "x.parquet")[0].completion == "a\\ud800b"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "not a readable Parquet"), (b"PAR1nonsense", "not a readable Parquet"), (None, "does not exist")],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "step_000001.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"step_000001.parquet.*{problem}"):
        read_trajectories(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [sample()])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedFileError, match="not a readable Parquet"):
        read_trajectories(path)


def replaced(table: pa.Table, name: str, values: list) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, table.schema.field(name), pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("token_id", [[1, 2]], "out of line"),
        ("segment_length", [[3, 1, 1, 2, 9]], "out of line"),
        ("role", ["villain"], "villain"),
        ("reward", [None], "reward exactly when"),
        ("loss_mask", [[True]], "loss_mask"),
        ("messages", ["{"], "contradicts itself"),
        ("messages", ['[{"role": "user"}]'], "contradicts itself"),
        ("schema_version", [99], "schema version 99"),
        ("schema_version", [0], "schema version 0"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(tmp_path: Path, column: str, values: list, problem: str) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [sample()])
    pq.write_table(replaced(pq.read_table(path), column, values), path)
    with pytest.raises(DamagedFileError, match=problem):
        read_trajectories(path)


def test_a_table_of_something_else_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(DamagedFileError, match="column 'schema_version' is missing"):
        read_trajectories(tmp_path / "x.parquet")


def test_unknown_further_columns_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [sample()])
    pq.write_table(pq.read_table(path).append_column("another_logprob", pa.array([[1.0]])), path)
    assert_equal(read_trajectories(path), [sample()])


def test_a_folder_named_like_a_partition_adds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "seed=7"
    folder.mkdir()
    write_trajectories(folder / "x.parquet", [sample()])
    assert_equal(read_trajectories(folder / "x.parquet"), [sample()])

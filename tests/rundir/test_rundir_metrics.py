"""metrics.jsonl: strict, append-only, readable after any kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from posttrain.rundir.files import DamagedFileError
from posttrain.rundir.metrics import MetricsWriter, read_metrics
from posttrain.signals.registry import UnknownSignalError
from posttrain.signals.signal import Measured


def no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def write(path: Path, attempt: int, *rows: tuple[int, str, float]) -> None:
    with MetricsWriter(path, attempt) as writer:
        for step, phase, value in rows:
            writer.write(step, step, phase, {"reward/mean": value})


def test_every_line_is_strict_json_and_nonfinite_values_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, 2) as writer:
        writer.write(3, 7, "train", {"reward/mean": math.nan, "policy/ratio_max": math.inf, "reward/std": 0.5}, now=9.5)
    record = json.loads(path.read_text(), parse_constant=no_constants)
    assert record == {
        "step": 3,
        "policy_version": 7,
        "attempt": 2,
        "time": 9.5,
        "phase": "train",
        "values": {"reward/mean": None, "policy/ratio_max": None, "reward/std": 0.5},
        "nonfinite": ["policy/ratio_max", "reward/mean"],
    }
    table = read_metrics(path)
    steps, values = table.series("reward/mean")
    assert steps.tolist() == [3]
    assert np.isnan(values).all()
    assert table.last("reward/std") == 0.5
    assert table.last("policy/loss") is None
    assert table.series("policy/loss")[0].size == 0


def test_numpy_values_and_counts_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, 1) as writer:
        writer.write(0, 0, "train", [Measured("reward/mean", float(np.float32(0.5)), 128)])
        writer.write(1, 1, "train", {"reward/mean": np.float32(0.25)})
    rows = read_metrics(path).rows
    assert rows[0].counts == {"reward/mean": 128}
    assert rows[1].values == {"reward/mean": 0.25}


def test_an_undefined_name_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, 1) as writer, pytest.raises(UnknownSignalError, match="reward/mean"):
        writer.write(0, 0, "train", {"reward/std": 1.0, "reward/meann": 1.0})
    assert path.read_bytes() == b""


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from posttrain.rundir.metrics import MetricsWriter
        writer = MetricsWriter(Path({str(path)!r}), 1)
        writer.write(0, 0, "train", {{"reward/mean": 1.0}})
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = subprocess.run([sys.executable, "-c", program], check=False)
    assert result.returncode == -signal.SIGKILL
    assert [row.step for row in read_metrics(path).rows] == [0]


def test_a_cut_off_line_is_named_and_spoils_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, (0, "train", 0.0), (1, "train", 0.1), (2, "train", 0.2))
    path.write_bytes(path.read_bytes()[:-25])
    table = read_metrics(path)
    assert [row.step for row in table.rows] == [0, 1]
    assert table.problems == ("metrics.jsonl:3: the last line is cut off",)
    write(path, 2, (2, "train", 0.9), (3, "train", 1.0))
    table = read_metrics(path)
    assert [(row.step, row.attempt) for row in table.rows] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert len(table.problems) == 1
    assert "metrics.jsonl:3" in table.problems[0]


def test_a_resumed_run_reads_as_one_lineage(tmp_path: Path) -> None:
    """Attempt 1 reached step 12, attempt 2 went on from the checkpoint of step 8 and is at step 10."""
    path = tmp_path / "metrics.jsonl"
    write(path, 1, *[(s, "train", 0.1) for s in range(1, 13)], (8, "evaluation", 0.1), (12, "evaluation", 0.1))
    write(path, 2, (9, "train", 0.2), (10, "train", 0.2))
    for resumed_from in ({2: 8}, None):
        table = read_metrics(path, resumed_from)
        steps, values = table.series("reward/mean")
        assert steps.max() == 10
        kept = {(row.step, row.phase): row.attempt for row in table.rows}
        assert kept == {(s, "train"): 1 for s in range(1, 9)} | {(9, "train"): 2, (10, "train"): 2} | {
            (8, "evaluation"): 1
        }
        assert table.superseded == 5
        assert values.size == 11


def test_an_evaluation_done_again_does_not_hide_the_training_row_of_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, (8, "train", 0.1), (8, "evaluation", 0.1), (9, "train", 0.1))
    write(path, 2, (8, "evaluation", 0.2), (9, "train", 0.2))
    kept = {(row.step, row.phase): row.attempt for row in read_metrics(path).rows}
    assert kept == {(8, "train"): 1, (8, "evaluation"): 2, (9, "train"): 2}


def test_a_start_from_the_beginning_supersedes_everything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, (0, "evaluation", 0.1), (1, "train", 0.1), (2, "train", 0.1))
    write(path, 2, (0, "evaluation", 0.2))
    assert [(row.step, row.attempt) for row in read_metrics(path, {1: -1, 2: -1}).rows] == [(0, 2)]


HUGE = b'{"step": 1e999, "policy_version": 0, "attempt": 1, "time": 0, "phase": "train", "values": {}}'


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b'{"step": 1}',
        b"\xff\xfe",
        b'{"values": 3}',
        b"[" * 100_000,
        b'{"step": "x"}',
        HUGE,
        HUGE.replace(b"1e999", b"9" * 30),
        HUGE.replace(b"1e999", b"-1"),
    ],
)
def test_any_damaged_line_is_named_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, (0, "train", 0.0))
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, 1, (1, "train", 0.0))
    table = read_metrics(path)
    assert [row.step for row in table.rows] == [0, 1]
    assert len(table.problems) == 1
    assert table.problems[0].startswith("metrics.jsonl:2: not a line of metrics")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl: cannot be read"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_writer_killed_at_any_moment_leaves_readable_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from posttrain.rundir.metrics import MetricsWriter
        writer = MetricsWriter(Path({str(path)!r}), 1)
        step = 0
        while True:
            writer.write(step, step, "train", {{"reward/mean": 1.0}})
            step += 1
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    steps, _ = read_metrics(path).series("reward/mean")
    assert steps.tolist() == list(range(len(steps)))
    assert len(steps) > 5

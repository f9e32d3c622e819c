"""The optional trackers themselves, offline, where they are installed: what a resumed run leaves in each.

Each test logs in a process of its own, because these packages keep threads and global state.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from posttrain.rundir.trackers import TrackerContext, open_trackers

name, folder = sys.argv[1], Path(sys.argv[2])
for first, value in ((0, 0.25), (2, 0.75)):
    context = TrackerContext(folder, "posttrain", "demo", "demo-1", {"policy": {"learning_rate": 1e-5}}, first)
    trackers = open_trackers([name], context, sys.exit)
    trackers.log(first, {"evaluation/sums/pass@1": value})
    trackers.close()
    assert not trackers.failures, trackers.failures
"""


def log_twice(name: str, folder: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed here")
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    environment |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(folder / "trackio")}
    command = [sys.executable, "-c", PROGRAM, name, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    log_twice("mlflow", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as data:
        runs = data.execute("SELECT run_uuid, status FROM runs").fetchall()
        rows = data.execute("SELECT run_uuid, key, step, value FROM metrics ORDER BY step").fetchall()
        parameters = data.execute("SELECT key, value FROM params").fetchall()
    [(run, status)] = runs
    assert status == "FINISHED"
    assert rows == [(run, "evaluation/sums/pass_at_1", 0, 0.25), (run, "evaluation/sums/pass_at_1", 2, 0.75)]
    assert parameters == [("policy.learning_rate", "1e-05")]


def test_trackio_goes_on_with_the_same_run(tmp_path: Path) -> None:
    log_twice("trackio", tmp_path)
    with sqlite3.connect(tmp_path / "trackio" / "posttrain.db") as data:
        rows = data.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert len({run_id for run_id, *_ in rows}) == 1
    assert [(name, step) for _, name, step, _ in rows] == [("demo-1", 0), ("demo-1", 2)]
    assert [json.loads(metrics)["evaluation/sums/pass@1"] for *_, metrics in rows] == [0.25, 0.75]


def test_wandb_keeps_both_parts_under_one_id(tmp_path: Path) -> None:
    log_twice("wandb", tmp_path)
    parts = sorted(tmp_path.glob("wandb/offline-run-*/run-demo-1.wandb"))
    assert len(parts) == 2
    assert [b"evaluation/sums/pass@1" in part.read_bytes() for part in parts] == [True, True]
    assert [value in part.read_bytes() for part, value in zip(parts, (b"0.25", b"0.75"), strict=True)] == [True, True]

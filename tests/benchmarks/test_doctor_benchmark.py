"""The benchmark of the doctor runs and finds every step it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "doctor.py"


def test_a_small_log_is_measured_in_every_format(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARK), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert set(result["measurements"]) == {"JSON lines", "JSON lines with NaN", "CSV"}
    for facts in result["measurements"].values():
        assert facts[0]["signals"] >= 38
        assert facts[0]["read_seconds"] > 0
        assert facts[0]["diagnose_seconds"] > 0

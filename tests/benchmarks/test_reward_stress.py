"""The benchmark of the stress test runs without its rival, and matches every case of the rival it knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_it_runs_without_the_rival(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "reward_stress.py"), "--quick", "--tasks", "2", "--sound-tasks", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path / "r.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["measurements"]["ours"]["substring"]["families"]
    assert result["measurements"]["sound"]["arithmetic, last integer"]["families"] == []
    assert result["measurements"]["theirs"] == {}


def test_a_case_of_the_rival_is_found_by_an_attack_or_spelling_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from stress_worlds import stressed

    import reward_stress

    result = stressed("pays_never")
    names = {a.family for a in result.attacks} | {s.name for s in result.spellings}
    for case, ours in reward_stress.OURS_FOR_THEIRS.items():
        assert set(ours) <= names, case
    theirs = {"failures": [("ne.sign", "false positive"), ("eq.int.plain", "false negative"), ("x.new", "raised")]}
    assert reward_stress._missed(result, theirs) == ["ne.sign"]

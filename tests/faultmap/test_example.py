"""The sick run that is shipped: small, anonymous, readable, and named right within the layer of its cause."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.cli.main import run_command
from posttrain.faultmap.doctor import EXAMPLE, examine
from posttrain.faultmap.report import write_report
from posttrain.settings.load import settings_from_mapping
from posttrain.settings.rules import check_settings

ROOT = Path(__file__).parents[2]
FILES = [path for path in EXAMPLE.rglob("*") if path.is_file()]


def test_it_is_small_and_holds_nothing_of_the_machine_it_was_made_on() -> None:
    assert 0 < sum(path.stat().st_size for path in FILES) < 1_000_000
    for path in FILES:
        content = path.read_bytes()
        for trace in (str(ROOT).encode(), b"/home/", b"/root", b"/tmp/", os.uname().nodename.encode()):
            assert trace not in content, f"{path.name}: {trace}"


def test_the_doctor_names_the_hacked_reward_first() -> None:
    first = examine(EXAMPLE).findings[0].finding
    assert first.cause == "reward_hacked"
    assert first.onset_step < 80


def test_the_command_shows_it_and_ends_with_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--example"]) == 1
    shown = capsys.readouterr().out
    assert "The reward pays for something that is not the task" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_it_can_be_viewed_and_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["view", str(EXAMPLE), "--limit", "1"]) == 0
    assert "Could not be read" not in capsys.readouterr().out
    assert write_report(EXAMPLE, tmp_path / "report.html").stat().st_size > 10_000


def test_the_script_that_made_it_still_says_the_same_settings() -> None:
    spec = importlib.util.spec_from_file_location("example_run", ROOT / "scripts" / "example_run.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    settings = settings_from_mapping(script.settings())
    check_settings(settings)
    stored = json.loads((EXAMPLE / "run.json").read_text())["settings"]
    stored = {name: section for name, section in stored.items() if name != "resolved"}
    assert settings_from_mapping(stored) == settings
    assert sorted(int(p.stem[5:]) for p in (EXAMPLE / "trajectories").iterdir()) == list(script.KEPT_STEPS)


def test_no_torch_is_needed() -> None:
    code = "import sys; sys.modules['torch'] = None; from posttrain.cli.main import main; main(['doctor', '--example'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 1, ended.stderr
    assert "reward_hacked" in ended.stdout

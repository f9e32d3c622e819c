"""A run whose journal breaks the rule of the lineage does not end as if all were well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from posttrain.cli.main import run_command
from posttrain.orchestration.journal import EventKind, Journal
from posttrain.orchestration.lineage import LineageError
from posttrain.rundir.directory import RunDirectory


@pytest.fixture
def consumes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step's groups are booked as consumed once more, past the journal's own check."""
    original = Journal.step_done

    def step_done(journal: Journal, step: int, policy_version: int) -> None:
        original(journal, step, policy_version)
        if step == 1:
            with journal._transaction():
                for fate in journal.lineage():
                    journal._append(EventKind.CONSUMED, fate.group_id, step=step)

    monkeypatch.setattr(Journal, "step_done", step_done)


@pytest.mark.usefixtures("consumes_twice")
def test_it_exits_3_and_says_what_is_violated_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings: dict[str, Any] = {"run": {"steps": 1, "threads": 1, "device": "cpu"}}
    config = small_config(tmp_path, **settings, rollout={"prompts_per_step": 7, "group_size": 2})
    assert run_command(["train", str(config), "--run", str(run)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "was consumed 2 times, in steps [1, 1]" in error
    assert "2 more" in error
    assert str(run) in error
    assert (run / "model" / "config.json").is_file(), "what was trained is kept, to be looked at"
    last = RunDirectory.open(run).info().attempts[-1]
    assert last.outcome == "failed"
    assert "was consumed 2 times" in last.detail
    assert run_command(["resume", str(run)]) == 3, "a finished run does not become right by asking again"
    again = capsys.readouterr()
    assert "was consumed 2 times" in again.err
    assert "Traceback" not in again.err


def test_a_few_violations_are_told_in_full() -> None:
    error = LineageError(Path("runs/a"), ["g1 was drawn 2 times", "steps do not run 1, 2, 3...: [2]"])
    assert "g1 was drawn 2 times; steps do not run 1, 2, 3...: [2]" in str(error)
    assert "more" not in str(error)
    assert error.exit_code == 3

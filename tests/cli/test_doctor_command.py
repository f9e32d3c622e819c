"""``posttrain doctor`` and ``posttrain explain`` as commands: options, exit codes, streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import detector, finding

import posttrain.faultmap.doctor as doctor_module
from posttrain.cli.main import run_command
from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.readers import read_history
from posttrain.signals.framework import Framework


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.jsonl"
    rows = [{"step": i, "reward": 0.01 * i, "entropy": 1.0, "kl": 0.1, "completions/mean_length": 9} for i in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def finds(monkeypatch: pytest.MonkeyPatch, findings: Sequence[Finding], *, broken: bool = False) -> None:
    asked = [detector("alpha", findings)]
    if broken:
        asked.append(detector("bad", judge=lambda _: [][0]))
    monkeypatch.setattr(doctor_module, "diagnose", lambda history: diagnose(history, asked))


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        (None, "info", 0),
        (Severity.INFO, "info", 1),
        (Severity.INFO, "warn", 0),
        (Severity.WARN, "warn", 1),
        (Severity.WARN, "critical", 0),
        (Severity.CRITICAL, "critical", 1),
        (Severity.CRITICAL, "off", 0),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_exit_code_is_that_of_the_severest_finding(
    form: list[str], severity: Severity | None, fail_on: str, code: int, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds(monkeypatch, [] if severity is None else [finding(severity=severity)])
    assert run_command(["doctor", log, "--fail-on", fail_on, *form]) == code


def test_a_warning_is_a_failure_unless_told_otherwise(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, [finding()])
    assert run_command(["doctor", log]) == 1


def test_a_failed_detector_is_no_clean_bill(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, [], broken=True)
    assert run_command(["doctor", log]) == 3
    finds(monkeypatch, [finding()], broken=True)
    assert run_command(["doctor", log]) == 1


def test_json_is_one_object_and_nothing_else(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["doctor", log, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["source"], document["framework"], document["last_step"]) == (log, "trl", 29)
    assert [row["layer"] for row in document["rows"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("framework", list(Framework))
def test_the_framework_can_be_named_as_people_write_it(
    framework: Framework, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Framework | None] = []

    def read(path: Path, named: Framework | None = None):
        asked.append(named)
        return read_history(path)

    monkeypatch.setattr(doctor_module, "read_history", read)
    assert run_command(["doctor", log, "--framework", framework.value, "--fail-on", "off"]) in (0, 3)
    assert asked == [framework]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "posttrain doctor PATH, or posttrain doctor --example"),
        (["{log}", "--example"], "posttrain doctor PATH, or posttrain doctor --example"),
        (["{log}", "--json", "--follow"], "--follow never ends"),
        (["{log}", "--fail-on", "never"], "--fail-on"),
        (["{log}", "--framework", "mine"], "--framework"),
        (["{log}.absent"], "absent"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_code_2(
    arguments: list[str], part: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["doctor", *(a.replace("{log}", log) for a in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert part in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


def test_what_goes_into_a_pipe_is_plain_and_narrow(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["doctor", log])
    run_command(["explain"])
    run_command(["explain", "completions/mean_length"])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert "rollout/length_mean" in printed


def test_an_unknown_name_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "stale_weight"]) == 2
    assert "The nearest: stale_weights" in capsys.readouterr().err

"""Following a log: only what changes is said, and Ctrl-C is a good end."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import detector, finding
from rich.console import Console
from series import history

from posttrain.errors import InputError
from posttrain.faultmap.diagnosis import Diagnosis, diagnose
from posttrain.faultmap.doctor_follow import change_lines, follow, stamp
from posttrain.faultmap.finding import Finding, Severity


def diagnosis(*findings: Finding, steps: int = 20) -> Diagnosis:
    return diagnose(history({"policy/entropy": [1.0] * steps}), [detector("alpha", findings)])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [finding()], "step 20  new  warn  Entropy collapses"),
        ([finding()], [finding(severity=Severity.CRITICAL)], "worse  critical"),
        ([finding()], [finding(last=18)], "over  warn"),
        ([finding()], [], "gone  warn"),
        ([finding()], [finding(onset=12, confidence=0.9)], ""),
        ([finding(cause="no_exploration")], [finding(cause="reward_hacked")], "new  warn"),
        ([finding()], [finding(), finding(onset=15, severity=Severity.CRITICAL)], "new  critical"),
    ],
)
def test_what_changed_is_one_line(before: list[Finding], after: list[Finding], said: str) -> None:
    lines = [line.plain for line in change_lines(diagnosis(*before), diagnosis(*after))]
    assert any(said in line for line in lines) if said else lines == []


def test_it_looks_again_only_when_the_log_has_grown_and_ends_with_the_last_state(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("1\n")
    results: list[Diagnosis | InputError] = [
        diagnosis(),
        InputError("log", str(file), "is empty", "Wait."),
        diagnosis(finding(severity=Severity.CRITICAL)),
    ]
    looked: list[int] = []
    naps = iter(["nothing", "more\n", "nothing", "more\n", "stop"])

    def look() -> Diagnosis:
        looked.append(1)
        result = results[len(looked) - 1]
        if isinstance(result, InputError):
            raise result
        return result

    def sleep(_: float) -> None:
        what = next(naps)
        if what == "stop":
            raise KeyboardInterrupt
        if what != "nothing":
            file.write_text(file.read_text() + what)

    out = io.StringIO()
    last = follow(file, look, Console(file=out, width=100), sleep=sleep)
    assert last.severity is Severity.CRITICAL
    assert len(looked) == 3
    assert "is empty" in out.getvalue()
    assert out.getvalue().count("new  critical") == 1


def test_a_directory_is_stamped_by_its_files_and_one_level_below(tmp_path: Path) -> None:
    stamps: list[Sequence[object]] = [stamp(tmp_path)]
    for name in ("metrics.jsonl", "trajectories/step_000001.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        stamps.append(stamp(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path)
    stamps.append(stamp(tmp_path))
    assert len(set(map(tuple, stamps[:3]))) == 3
    assert stamp(tmp_path / "absent") == ()


def test_two_moments_of_one_finding_are_the_same() -> None:
    later = dataclasses.replace(finding(), summary="another sentence", onset_step=11)
    assert change_lines(diagnosis(finding()), diagnosis(later)) == []

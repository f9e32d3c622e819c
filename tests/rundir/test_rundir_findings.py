"""Events of findings: strict JSON lines, appended, and readable after a kill."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.rundir.findings import ACKNOWLEDGED, acknowledged, append_finding_event, read_finding_events


def test_events_come_back_in_order_as_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"
    append_finding_event(path, attempt=1, step=3, event="new", now=1.5, finding={"value": float("nan")})
    append_finding_event(path, attempt=2, step=4, event="gone", finding={"value": 1.0})
    first, second = read_finding_events(path)
    assert first == {"time": 1.5, "attempt": 1, "step": 3, "event": "new", "finding": {"value": None}}
    assert (second["attempt"], second["event"]) == (2, "gone")
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


def test_a_line_cut_off_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"
    path.write_bytes(b'{"event": "new", "step": 1}\n{"event": "ne')
    append_finding_event(path, attempt=2, step=2, event="over")
    assert [event["event"] for event in read_finding_events(path)] == ["new", "over"]


def test_a_run_without_the_file_has_no_events(tmp_path: Path) -> None:
    assert list(read_finding_events(tmp_path / "findings.jsonl")) == []


def test_what_was_acknowledged_in_any_attempt_counts(tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"
    append_finding_event(path, attempt=1, step=3, event=ACKNOWLEDGED, names=["reward_dead"])
    append_finding_event(path, attempt=2, step=3, event=ACKNOWLEDGED, names=["mismatch", 3])
    append_finding_event(path, attempt=2, step=3, event="new", names=["entropy_collapse"])
    path.write_bytes(path.read_bytes() + b'{"event": "acknowledged", "names": "all"}\n[]\n')
    assert acknowledged(read_finding_events(path)) == {"reward_dead", "mismatch"}

"""``findings.jsonl``: what the detectors said while the run was training, one event a line, only ever appended to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from posttrain.rundir.files import strict_json

ACKNOWLEDGED = "acknowledged"
"""The event by which somebody goes on in spite of a finding; its line has ``names``."""


def append_finding_event(
    path: Path, *, attempt: int, step: int, event: str, now: float | None = None, **more: Any
) -> None:
    """Append one line, on disk when this returns. ``more`` is JSON data, such as ``finding``."""
    record: Mapping[str, Any] = {
        "time": round(now or time.time(), 3), "attempt": attempt, "step": step, "event": event, **more,
    }  # fmt: skip
    with path.open("ab") as file:
        if file.tell() and not _ends_with_newline(path):
            file.write(b"\n")
        file.write((strict_json(record) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_finding_events(path: Path) -> Sequence[Mapping[str, Any]]:
    """Every event in order. A run without the file has none; a damaged line is left out: the next look finds anew."""
    events: list[Mapping[str, Any]] = []
    if not path.exists():
        return events
    for line in path.read_bytes().split(b"\n"):
        try:
            record: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and "event" in record:
            events.append(cast("dict[str, Any]", record))
    return events


def acknowledged(events: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names that somebody has acknowledged in any attempt."""
    found = [e.get("names") for e in events if e.get("event") == ACKNOWLEDGED]
    return {
        name
        for names in found
        if isinstance(names, list)
        for name in cast("list[object]", names)
        if isinstance(name, str)
    }


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

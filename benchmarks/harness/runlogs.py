"""Rows of run logs, and logs cut off at a step. Standard library only, as the sides need it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows with ``step`` of a trainer_state, a JSON list, or JSONL with or without verl's ``data``."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        found = json.loads(text)
        rows = found["log_history"] if isinstance(found, dict) else found
    return [{"step": row["step"], **row["data"]} if "data" in row else row for row in rows]


def write_until(path: Path, step: int, out: Path) -> Path:
    """The log as it was when ``step`` had been logged, in its own format."""
    target = out / path.name
    text = path.read_text()
    if path.suffix == ".jsonl":
        kept = [line for line in text.splitlines() if line.strip() and json.loads(line)["step"] <= step]
        target.write_text("\n".join(kept) + "\n")
        return target
    found = json.loads(text)
    if isinstance(found, dict):
        rows = [row for row in found["log_history"] if row["step"] <= step]
        found = {**found, "log_history": rows, "global_step": step}
    else:
        found = [row for row in found if row["step"] <= step]
    target.write_text(json.dumps(found))
    return target

"""JSON: one object a line, an array of objects, TRL's ``trainer_state.json``, or an object of columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from posttrain.faultmap.history import Facts
from posttrain.faultmap.readers.remarks import Remarks, quoted
from posttrain.faultmap.readers.source import Source, unreadable
from posttrain.faultmap.readers.table import Table, TableBuilder
from posttrain.signals.framework import Framework

_NAMED = ("log_history", "history", "logs", "steps", "metrics", "data")
_SHOWN = 3
_MOST_BAD = 10_000


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file held. ``kind`` names the format; ``framework`` is set where the format gives it away."""

    table: Table
    kind: str
    framework: Framework | None = None
    facts: Facts = field(default_factory=Facts)
    null_is_nan: bool = True


def parse_json(text: bytes) -> object:
    """JSON, with the bare NaN and Infinity that Python writes. Raises ValueError or RecursionError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def read_json_lines(source: Source, remarks: Remarks) -> Parsed:
    """JSON lines. verl wraps its metrics in ``data``, posttrain in ``values``; both are unwrapped."""
    builder = TableBuilder()
    bad: list[tuple[int, str]] = []
    others = 0
    last = 0
    loads = orjson.loads
    lone: dict[str, Any] | None = None
    for number, line in enumerate(source.lines(remarks), 1):
        last = number
        if line == b"\n":
            continue
        try:
            row = loads(line)
        except orjson.JSONDecodeError:
            if not line.strip():
                continue
            if len(bad) > _MOST_BAD and len(bad) > builder.rows:
                remarks.problem(f"{source.path.name}:{number}: most lines are not JSON; reading stopped.")
                break
            try:
                row = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
            except (ValueError, RecursionError) as error:
                bad.append((number, "nested too deeply" if isinstance(error, RecursionError) else str(error)))
                continue
        if type(row) is not dict:
            others += 1
            continue
        row = cast("dict[str, Any]", row)
        if builder.is_full:
            break
        lone = row if builder.rows == 0 else None
        builder.add(_unwrapped(row), len(line))
    if lone is not None:
        whole = _from_document(lone)
        if whole is not None:
            return whole
    _tell_bad(source, bad, last, remarks)
    if others:
        remarks.problem(f"{source.path.name}: {others} lines hold JSON that is no object; they were left out.")
    table = builder.build()
    if not table.rows:
        why = f" ({remarks.problems[0].rstrip('.')})" if remarks.problems else ""
        raise unreadable(source.path, f"holds no line that is a JSON object{why}", "Give one JSON object a line.")
    return Parsed(table, "JSON lines", null_is_nan="_step" not in table.columns)


def read_document(source: Source, remarks: Remarks) -> Parsed:
    """One JSON document. Raises InputError where it holds no table of numbers."""
    try:
        content = parse_json(source.document().removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise unreadable(
            source.path, f"is not readable JSON ({reason})", "Copy it again, or give JSON lines."
        ) from error
    found = _from_document(content)
    if found is None:
        raise unreadable(
            source.path,
            "is JSON without a list of steps",
            "Give TRL's trainer_state.json, a list of objects, or one JSON object a line.",
        )
    return found


def _unwrapped(row: dict[str, Any]) -> Mapping[str, Any]:
    inner = row.get("data")
    if isinstance(inner, dict) and "step" in row:
        return {"step": row["step"], **cast("dict[str, Any]", inner)}
    values = row.get("values")
    if isinstance(values, dict):
        rest = {key: value for key, value in row.items() if key not in ("values", "counts", "nonfinite", "time")}
        return rest | cast("dict[str, Any]", values)
    return row


def _from_document(content: object) -> Parsed | None:
    rows = _rows(content)
    if rows is not None:
        builder = TableBuilder()
        for row in rows:
            if isinstance(row, dict) and not builder.is_full:
                builder.add(_unwrapped(cast("dict[str, Any]", row)))
        table = builder.build()
        if not table.columns:
            return None
        if isinstance(content, dict) and "log_history" in content:
            facts = _trainer_facts(cast("dict[str, Any]", content))
            return Parsed(table, "TRL trainer_state.json", Framework.TRL, facts)
        return Parsed(table, "a JSON list of steps")
    if isinstance(content, dict):
        return _from_columns(cast("dict[str, Any]", content))
    return None


def _rows(content: object) -> list[object] | None:
    if isinstance(content, list):
        return cast("list[object]", content)
    if not isinstance(content, dict):
        return None
    held = cast("dict[str, Any]", content)
    for name in _NAMED:
        inner = held.get(name)
        if isinstance(inner, list) and any(isinstance(row, dict) for row in cast("list[object]", inner)):
            return cast("list[object]", inner)
    return None


def _from_columns(content: dict[str, Any]) -> Parsed | None:
    """``{"reward": [...], "loss": [...]}``: every list as long as the longest is a column."""
    lists = {key: cast("list[object]", value) for key, value in content.items() if isinstance(value, list)}
    length = max((len(value) for value in lists.values()), default=0)
    columns = {key: value for key, value in lists.items() if len(value) == length}
    if length < 2 or not any(isinstance(value[0], int | float) for value in columns.values()):
        return None
    builder = TableBuilder()
    for index in range(length):
        builder.add({key: value[index] for key, value in columns.items()})
    return Parsed(builder.build(), "a JSON object of columns")


def _trainer_facts(content: dict[str, Any]) -> Facts:
    planned = content.get("max_steps")
    return Facts(planned_steps=planned if isinstance(planned, int) and 0 < planned < 2**53 else None)


def _tell_bad(source: Source, bad: list[tuple[int, str]], last: int, remarks: Remarks) -> None:
    if bad and bad[-1][0] == last:
        remarks.problem(f"{source.path.name}:{last}: the last line is cut off.")
        bad = bad[:-1]
    for number, reason in bad[:_SHOWN]:
        remarks.problem(f"{source.path.name}:{number}: not JSON ({quoted(reason)}).")
    if len(bad) > _SHOWN:
        remarks.problem(f"{source.path.name}: {len(bad) - _SHOWN} more lines are not JSON.")

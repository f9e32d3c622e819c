"""Rows of a file as plain records: JSONL, CSV, Parquet, or a directory saved by ``datasets``. Nothing is executed."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.errors import InputError


@dataclass(frozen=True, slots=True)
class Row:
    """One record; ``place`` names it in error messages (file and line or row, counted from 1)."""

    number: int
    place: str
    values: Mapping[str, Any]


def read_rows(setting: str, path: str | Path) -> list[Row]:
    """All rows of a source, in order; values are JSON-compatible.

    Raises InputError on a missing, empty or unreadable source, or a value with no JSON form.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(setting, str(path), "does not exist", "Give a .jsonl, .csv or .parquet file, or a directory.")
    try:
        if path.is_dir():
            records = _saved_dataset(setting, path)
        elif path.suffix in (".jsonl", ".ndjson"):
            records = _json_lines(setting, path)
        elif path.suffix == ".csv":
            records = _csv(path)
        elif path.suffix == ".parquet":
            records = _numbered(path, pq.ParquetFile(path).iter_batches())
        else:
            raise InputError(
                setting,
                str(path),
                f"has the unknown ending {path.suffix!r}",
                "Use .jsonl, .csv, .parquet or a directory.",
            )
        rows = [
            Row(number, place, {name: _plain(setting, f"{place}, column {name!r}", v) for name, v in values.items()})
            for number, (place, values) in enumerate(records, start=1)
        ]
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise InputError(setting, str(path), f"cannot be read: {error}", "Check the file.") from error
    except RecursionError as error:
        raise InputError(setting, str(path), "a value is nested too deeply", "Flatten it, or drop it.") from error
    if not rows:
        raise InputError(setting, str(path), "is empty", "Add at least one row.")
    return rows


_Records = Iterator[tuple[str, Mapping[str, Any]]]


def _json_lines(setting: str, path: Path) -> _Records:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record: Any = json.loads(line)
            except ValueError as error:
                raise InputError(
                    setting, f"{path}:{number}", f"is not JSON: {error}", "One JSON object a line."
                ) from error
            if not isinstance(record, dict):
                raise InputError(setting, f"{path}:{number}", "is not a JSON object", "One JSON object a line.")
            yield f"{path.name}:{number}", cast(dict[str, Any], record)


def _csv(path: Path) -> _Records:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        for record in reader:
            place = f"{path.name}:{reader.line_num}"
            if None in record or None in record.values():
                raise csv.Error(f"line {reader.line_num} has not as many fields as the header")
            yield place, record


def _numbered(path: Path, batches: Iterable[pa.RecordBatch]) -> _Records:
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield f"{path.name} row {number}", record


def _saved_dataset(setting: str, path: Path) -> _Records:
    """A directory written by ``Dataset.save_to_disk``: Arrow streams listed in its state file."""
    if (path / "dataset_dict.json").is_file():
        names = sorted(p.name for p in path.iterdir() if p.is_dir())
        raise InputError(setting, str(path), "holds several splits", f"Give one of them: {', '.join(names)}.")
    state_path = path / "state.json"
    if not state_path.is_file():
        raise InputError(
            setting, str(path), "is a directory, but not one saved by datasets", "Give the file, or use save_to_disk."
        )
    try:
        state: Any = json.loads(state_path.read_text(encoding="utf-8"))
        files = [path / Path(str(entry["filename"])).name for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(setting, str(state_path), f"is damaged: {error}", "Save the dataset again.") from error
    return _numbered(path, _stream(files))


def _stream(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
            yield from batches


def _plain(setting: str, place: str, value: Any) -> Any:
    """JSON-compatible form: dates as ISO text, decimals as text, NaN and infinities as ``None``."""
    if isinstance(value, str) and not value.isascii():
        return _text(setting, place, value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(setting, place, v) for k, v in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(setting, place, v) for v in cast(list[Any], value)]
    raise InputError(setting, place, f"holds a {type(value).__name__}", "Remove the column, or store it as text.")


def _text(setting: str, place: str, value: str) -> str:
    """The text itself, if it can be encoded: JSON can spell half of a surrogate pair, which is no character."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        broken = value[error.start : error.end].encode("unicode_escape").decode()
        raise InputError(setting, place, f"holds {broken}, which is no character", "Correct the text.") from error
    return value

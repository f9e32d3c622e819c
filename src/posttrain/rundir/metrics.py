"""``metrics.jsonl``: one line per step and phase, appended and flushed to disk, never rewritten.

The file is strict JSON: a value that is not finite is written as ``null`` and its name is listed under
``nonfinite``, so that a NaN is seen by everyone and breaks no parser.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from posttrain.rundir.files import DamagedFileError, strict_json
from posttrain.signals.registry import signal_for
from posttrain.signals.signal import Measured


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """One line. ``values`` holds NaN where a value was not finite; ``counts`` what a value summarises, where known."""

    step: int
    policy_version: int
    attempt: int
    time: float
    phase: str
    values: Mapping[str, float]
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """The rows that belong to the lineage of the run, by step, and what could not be read."""

    rows: tuple[MetricsRow, ...]
    problems: tuple[str, ...] = ()
    superseded: int = 0
    """Rows left out because a later attempt went back before them."""

    def names(self) -> list[str]:
        """Names of all values, sorted."""
        return sorted({name for row in self.rows for name in row.values})

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Steps and values of one signal; NaN where a value was not finite. Empty where it was never written."""
        found = [(row.step, row.values[name]) for row in self.rows if name in row.values]
        return np.array([step for step, _ in found], np.int64), np.array([value for _, value in found], np.float64)

    def last(self, name: str) -> float | None:
        """Newest value of a signal, or ``None`` where it was never written."""
        return next((row.values[name] for row in reversed(self.rows) if name in row.values), None)


class MetricsWriter:
    """Appends lines. Each is on disk when ``write`` returns.

    A line that an earlier process left unfinished is closed first, so that it spoils no other.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self._attempt = attempt
        unfinished = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
        self._file = path.open("ab")
        if unfinished:
            self._file.write(b"\n")

    def write(
        self,
        step: int,
        policy_version: int,
        phase: str,
        values: Mapping[str, float] | Sequence[Measured],
        *,
        now: float | None = None,
    ) -> MetricsRow:
        """Append one line and return it. ``phase`` says what was measured, such as ``train`` or ``evaluation``.

        Raises UnknownSignalError for a name no signal has.
        """
        if isinstance(values, Mapping):
            numbers, counts = {name: float(value) for name, value in values.items()}, dict[str, int]()
        else:
            numbers = {m.name: float(m.value) for m in values}
            counts = {m.name: m.count for m in values}
        for name in numbers:
            signal_for(name)
        row = MetricsRow(step, policy_version, self._attempt, now or time.time(), phase, numbers, counts)
        self._file.write((_line(row) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        return row

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path, resumed_from: Mapping[int, int] | None = None) -> MetricsTable:
    """Read the lineage of a run.

    ``resumed_from`` maps an attempt to the step of the checkpoint it continued from (``run.json`` knows). Rows
    of earlier attempts after that step were redone and are left out; without the map the first step an
    attempt wrote stands in for it. Among rows of the same step and phase the highest attempt counts, then the
    later line. A truncated last line is expected after a kill; any other unreadable line is named. Raises
    DamagedFileError if the file cannot be read at all.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error.strerror or error})") from error
    rows: list[MetricsRow] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line))
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
            last = number == len(lines)
            problems.append(
                f"{path.name}:{number}: "
                + ("the last line is cut off" if last else f"not a line of metrics ({type(error).__name__}: {error})")
            )
    kept = _lineage(rows, resumed_from or {})
    return MetricsTable(tuple(kept), tuple(problems), len(rows) - len(kept))


def _lineage(rows: Sequence[MetricsRow], resumed_from: Mapping[int, int]) -> list[MetricsRow]:
    attempts = {row.attempt for row in rows}
    redone_after = {a: min(row.step for row in rows if row.attempt == a) for a in attempts} | dict(resumed_from)
    newest: dict[tuple[int, str], MetricsRow] = {}
    for row in rows:
        if any(later > row.attempt and row.step > step for later, step in redone_after.items()):
            continue
        key = (row.step, row.phase)
        if key not in newest or row.attempt >= newest[key].attempt:
            newest[key] = row
    return sorted(newest.values(), key=lambda row: (row.step, row.time))


def _line(row: MetricsRow) -> str:
    record: dict[str, Any] = {
        "step": row.step,
        "policy_version": row.policy_version,
        "attempt": row.attempt,
        "time": round(row.time, 3),
        "phase": row.phase,
        "values": row.values,
    }
    if row.counts:
        record["counts"] = row.counts
    nonfinite = sorted(name for name, value in row.values.items() if not math.isfinite(value))
    if nonfinite:
        record["nonfinite"] = nonfinite
    return strict_json(record)


def _row(line: bytes) -> MetricsRow:
    record = cast("dict[str, Any]", orjson.loads(line))
    values = cast("dict[str, float | None]", record["values"])
    step = int(record["step"])
    if not 0 <= step < 2**63:
        raise ValueError(f"no step has the number {step}")
    return MetricsRow(
        step=step,
        policy_version=int(record["policy_version"]),
        attempt=int(record["attempt"]),
        time=float(record["time"]),
        phase=str(record["phase"]),
        values={name: math.nan if value is None else float(value) for name, value in values.items()},
        counts={name: int(count) for name, count in cast("dict[str, int]", record.get("counts", {})).items()},
    )


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

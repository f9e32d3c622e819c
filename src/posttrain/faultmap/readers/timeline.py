"""Which step each row of a log belongs to, and which values count where a step was logged more than once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Mask, Steps, Values
from posttrain.faultmap.readers.remarks import Remarks, quoted
from posttrain.faultmap.readers.table import Column, Table

STEP_KEYS = (
    "train/global_step",
    "trainer/global_step",
    "training/global_step",
    "step",
    "global_step",
    "train/step",
    "rollout/step",
    "trainer/step",
    "_step",
    "Step",
    "iteration",
    "iter",
    "update",
    "epoch",
)
"""Names of step counters, the surest first."""
_LARGEST = 2.0**53


@dataclass(frozen=True, slots=True)
class Timeline:
    """``steps`` (int64, [rows]) of each row; -1 where a row belongs to none. ``key`` is the counter used, if any."""

    steps: Steps
    key: str | None


def timeline(table: Table, remarks: Remarks, preferred: tuple[str, ...] = ()) -> Timeline:
    """Choose the step counter of a table. A row without one belongs to the step of the row before it."""
    for key in (*preferred, *STEP_KEYS):
        column = table.columns.get(key)
        if column is None or not _counts(column, table.rows, key):
            continue
        steps = np.full(table.rows, -1, np.int64)
        usable = _whole(column.values)
        steps[column.rows[usable]] = column.values[usable].astype(np.int64)
        bad = int((~usable & ~column.nulls).sum())
        if bad:
            remarks.problem(f"{bad} rows have a {quoted(key)} that is no step number; they were left out.")
            steps[column.rows[~usable & ~column.nulls]] = -2
        if key not in preferred and key not in ("step", "global_step", "_step", "Step"):
            remarks.note(f"Steps are those of {quoted(key)}.")
        return Timeline(_carried(steps), key)
    ordered = " (the log counts epochs only)" if "epoch" in table.columns else ""
    remarks.note(f"The log has no step counter{ordered}: rows were numbered from 1.")
    return Timeline(np.arange(1, table.rows + 1, dtype=np.int64), None)


def _counts(column: Column, rows: int, key: str) -> bool:
    """True if a column can number most of the rows."""
    usable = _whole(column.values)
    enough = usable.sum() * 2 >= rows and usable.sum() * 10 >= 9 * (~column.nulls).sum()
    # An epoch that stays the same for many rows orders nothing.
    return bool(enough) and (key != "epoch" or len(np.unique(column.values[usable])) * 2 > rows)


def _whole(values: Values) -> Mask:
    with np.errstate(invalid="ignore"):
        return np.isfinite(values) & (values >= 0) & (values < _LARGEST) & (np.floor(values) == values)


def _carried(steps: Steps) -> Steps:
    """-1 takes the step of the last row that has one; -2 (a broken number) becomes -1."""
    known = np.where(steps != -1, np.arange(len(steps)), -1)
    last = np.maximum.accumulate(known) if len(steps) else known
    filled = np.where(last >= 0, steps[np.maximum(last, 0)], -1)
    return np.where(steps == -2, -1, filled).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Kept:
    """Which entries of a column count: ``order`` indexes them by ascending step; ``replaced`` were logged again."""

    order: Steps
    replaced: int
    disordered: bool


def keep_latest(steps: Steps) -> Kept:
    """Entries that count, for steps in the order in which they were logged ([n], any order, -1 for none).

    Where a step comes again, everything logged before from that step on was redone (a resumed run) and is left out.
    """
    index = np.flatnonzero(steps >= 0)
    taken = steps[index]
    if len(taken) < 2 or bool(np.all(np.diff(taken) > 0)):
        return Kept(index, 0, False)
    _, first = np.unique(taken, return_index=True)
    again = np.ones(len(taken), np.bool_)
    again[first] = False
    redone_from = np.where(again, taken, np.iinfo(np.int64).max)
    later = np.minimum.accumulate(redone_from[::-1])[::-1]
    later = np.append(later[1:], np.iinfo(np.int64).max)
    keep = taken < later
    index, taken = index[keep], taken[keep]
    order = np.argsort(taken, kind="stable")
    return Kept(index[order], int((~keep).sum()), bool(np.any(np.diff(taken) < 0)))

"""Rows of a log as columns of numbers, built while the log streams by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from posttrain.faultmap.history import Mask, Values
from posttrain.faultmap.readers.numbers import LONGEST_NUMBER, to_number

Rows = npt.NDArray[np.int64]

MOST_KEYS = 20_000
MOST_VALUES = 100_000_000
"""800 MB of numbers; what is beyond is not read."""
LONGEST_KEY = 300
DEEPEST = 4
_PENDING = 400_000
_PENDING_BYTES = 8 << 20
"""Values, and bytes of text, held as Python objects before they become arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One key: ``rows`` (int64, [n], ascending) in which it was logged, its ``values``, and where it was ``null``."""

    rows: Rows
    values: Values
    nulls: Mask


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` of a log. ``texts``: values that are no numbers, by key; ``worded``: keys whose numbers were text."""

    rows: int
    columns: Mapping[str, Column]
    texts: Mapping[str, int] = field(default_factory=dict[str, int])
    worded: frozenset[str] = frozenset()
    full: str = ""
    """Why the table could take no more; empty where it took everything."""


@dataclass(slots=True)
class _Block:
    rows: list[int] = field(default_factory=list[int])
    values: list[list[object]] = field(default_factory=list[list[object]])


@dataclass(slots=True)
class _Pieces:
    rows: list[Rows] = field(default_factory=list[Rows])
    values: list[Values] = field(default_factory=list[Values])
    nulls: list[Mask] = field(default_factory=list[Mask])


class TableBuilder:
    """Takes rows one by one and keeps them as arrays. Rows with the same keys in the same order are fast."""

    def __init__(
        self, *, texts_are_numbers: bool = False, most_keys: int = MOST_KEYS, most_values: int = MOST_VALUES
    ) -> None:
        self._texts_are_numbers = texts_are_numbers
        self._most_keys, self._most_values = most_keys, most_values
        self._blocks: dict[tuple[str, ...], _Block] = {}
        self._pending = self._pending_bytes = 0
        self._total = 0
        self._pieces: dict[str, _Pieces] = {}
        self._texts: dict[str, int] = {}
        self._worded: set[str] = set()
        self._full = ""
        self.rows = 0

    @property
    def is_full(self) -> bool:
        """True once a limit is reached; further rows are refused."""
        return bool(self._full)

    def add(self, row: Mapping[str, Any], size: int = 0) -> None:
        """Add a row. Numbers and text that holds numbers are kept; objects inside are flattened with ``/``.

        ``size`` is how many bytes the row had; the text in it is not held for long.
        """
        keys = tuple(row)
        block = self._blocks.get(keys)
        if block is None:
            block = self._blocks[keys] = _Block()
        block.rows.append(self.rows)
        block.values.append(list(row.values()))
        self.rows += 1
        self._pending += len(keys) + 1
        self._pending_bytes += size
        if self._pending >= _PENDING or self._pending_bytes >= _PENDING_BYTES:
            self._flush()

    def add_numbers(self, columns: Mapping[str, tuple[Values, Mask]], count: int) -> None:
        """Add ``count`` rows: for each key its values (float64, [count]; NaN where null) and where it is null."""
        if not count:
            return
        self._flush()
        rows = np.arange(self.rows, self.rows + count, dtype=np.int64)
        for key, (values, nulls) in columns.items():
            self._keep(key, rows, values, nulls)
        self.rows += count
        self._pending = (len(columns) + 1) * count
        self._flush()

    def build(self) -> Table:
        """The table of all rows so far."""
        self._flush()
        columns = {key: _joined(pieces) for key, pieces in self._pieces.items()}
        worded = frozenset[str]() if self._texts_are_numbers else frozenset(self._worded)
        return Table(self.rows, columns, dict(self._texts), worded, self._full)

    def _flush(self) -> None:
        for keys, block in self._blocks.items():
            self._take(keys, block)
        self._blocks.clear()
        self._total += self._pending
        self._pending = self._pending_bytes = 0
        if self._total > self._most_values:
            self._full = f"it holds more than {self._most_values:,} values"

    def _take(self, keys: tuple[str, ...], block: _Block) -> None:
        rows = np.array(block.rows, np.int64)
        plain = _matrix(block.values, len(keys))
        for key, cells in zip(keys, _columns(plain, block.values), strict=True):
            if isinstance(cells, np.ndarray):
                self._keep(key, rows, cells, np.zeros(len(rows), np.bool_))
            else:
                self._convert(key, rows, cells, DEEPEST)

    def _convert(self, key: str, rows: Rows, cells: Sequence[object], depth: int) -> None:
        """One column with something else than numbers in it."""
        quick = _worded(cells)
        if quick is not None:
            self._keep(key, rows, *quick)
            self._worded.add(key)
            return
        nulls = np.array([cell is None for cell in cells], np.bool_)
        numbers = [np.nan if cell is None else to_number(cell) for cell in cells]
        known = np.array([number is not None for number in numbers], np.bool_)
        if known.any():
            values = np.array([np.nan if number is None else number for number in numbers], np.float64)
            self._keep(key, rows[known], values[known], nulls[known])
            if any(isinstance(cell, str) and number is not None for cell, number in zip(cells, numbers, strict=True)):
                self._worded.add(key)
        nested = [i for i in np.flatnonzero(~known).tolist() if isinstance(cells[i], dict) and depth > 1]
        lost = int((~known).sum()) - len(nested)
        if lost:
            self._texts[key] = self._texts.get(key, 0) + lost
        for inner, (where, values) in _inner([cast("dict[object, object]", cells[i]) for i in nested], nested).items():
            self._convert(f"{key}/{inner}", rows[where], values, depth - 1)

    def _keep(self, key: str, rows: Rows, values: Values, nulls: Mask) -> None:
        if len(key) > LONGEST_KEY:
            key = key[:LONGEST_KEY]
        pieces = self._pieces.get(key)
        if pieces is None:
            if len(self._pieces) >= self._most_keys:
                self._full = f"it has more than {self._most_keys:,} different keys"
                return
            pieces = self._pieces[key] = _Pieces()
        pieces.rows.append(rows)
        pieces.values.append(values)
        pieces.nulls.append(nulls)


def _matrix(values: list[list[object]], width: int) -> Values | None:
    """All cells of a block at once ([rows, width]), or ``None`` where some are no numbers."""
    kinds = {kind for row in values for kind in set(map(type, row))}
    if not kinds <= {float, int, bool}:
        return None
    try:
        matrix = np.array(values, np.float64)
    except (ValueError, OverflowError):
        return None
    return matrix if matrix.shape == (len(values), width) else None


def _columns(plain: Values | None, values: list[list[object]]) -> Iterator[Values | Sequence[object]]:
    if plain is not None:
        yield from plain.T
        return
    for cells in zip(*values, strict=True):
        yield _array(cells)


def _array(cells: tuple[object, ...]) -> Values | Sequence[object]:
    if any(type(cell) is not float and type(cell) is not int for cell in cells):
        return cells
    try:
        return np.array(cells, np.float64)
    except OverflowError:
        return cells


def _worded(cells: Sequence[object]) -> tuple[Values, Mask] | None:
    """Cells that are all text or missing, where every text is a number; the values and where they are missing."""
    if any(cell is not None and (type(cell) is not str or len(cell) > LONGEST_NUMBER) for cell in cells):
        return None
    texts = cast("Sequence[str | None]", cells)
    # What numpy takes for a number beyond what ``to_number`` does: 1_000, and digits of every script.
    if any(text is not None and ("_" in text or not text.isascii()) for text in texts):
        return None
    try:
        values = np.array(["nan" if text is None else text for text in texts]).astype(np.float64)
    except ValueError:
        return None
    return values, np.array([text is None for text in texts], np.bool_)


def _inner(objects: Iterable[dict[object, object]], where: Iterable[int]) -> dict[str, tuple[list[int], list[object]]]:
    """Objects turned into columns: for each key the positions that have it and the values there."""
    found: dict[str, tuple[list[int], list[object]]] = {}
    for position, one in zip(where, objects, strict=True):
        for key, value in one.items():
            positions, values = found.setdefault(str(key), ([], []))
            positions.append(position)
            values.append(value)
    return found


def _joined(pieces: _Pieces) -> Column:
    rows = np.concatenate(pieces.rows)
    values, nulls = np.concatenate(pieces.values), np.concatenate(pieces.nulls)
    if len(rows) > 1 and not bool(np.all(np.diff(rows) > 0)):
        order = np.argsort(rows, kind="stable")
        rows, values, nulls = rows[order], values[order], nulls[order]
    return Column(rows, values, nulls)

"""Tables of comma-, tab- or semicolon-separated values, wandb's exports among them."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter

import pyarrow
from pyarrow import csv as arrow_csv

from posttrain.faultmap.readers.numbers import to_number
from posttrain.faultmap.readers.remarks import Remarks, listed, quoted
from posttrain.faultmap.readers.source import Source, unreadable
from posttrain.faultmap.readers.structured import Parsed
from posttrain.faultmap.readers.table import TableBuilder

_DELIMITERS = (",", "\t", ";")
_EMPTY = frozenset(("", "null", "None", "N/A", "NA"))
_BLOCK = 1 << 20
"""Bytes of lines that are looked at together."""
_MOST_REFUSED = 3
"""Blocks with text in them, after which no more is expected to be all numbers."""


def looks_like_csv(head: bytes) -> bool:
    """True if the first two lines are a header and a row of it with a number inside."""
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()]
    if len(lines) < 2:
        return False
    delimiter = _delimiter(lines[0])
    try:
        header, first = (next(csv.reader([line], delimiter=delimiter)) for line in lines[:2])
    except (csv.Error, StopIteration):
        return False
    names = sum(bool(name.strip()) and to_number(name) is None for name in header)
    numbers = sum(to_number(cell) is not None for cell in first)
    return len(header) >= 2 and len(first) == len(header) and names >= 2 and numbers >= 1


def read_csv(source: Source, remarks: Remarks) -> Parsed:
    """A table with a header. Empty cells are no values; a row with too many or too few cells is a problem."""
    delimiter = _delimiter(source.head.decode("utf-8-sig", "replace").lstrip().splitlines()[0])
    lines = _Lines(source.lines(remarks))
    try:
        rows = csv.reader(lines.texts(lines.rest), delimiter=delimiter)
        cells = next(cells for cells in rows if any(map(str.strip, cells)))
    except csv.Error as error:
        raise unreadable(source.path, f"has no header that can be read ({error})", "Give a table of text.") from None
    except StopIteration:
        raise unreadable(source.path, "is empty", "Give a table with a header.") from None
    body = _Body(_header(cells, remarks), delimiter)
    try:
        for block in lines.blocks():
            if any(b'"' in line for line in block):
                # A quoted cell may go on in the next line, and so in the next block.
                body.read_rows(lines.texts(chain(block, lines.rest)))
                break
            if body.read_numbers(block):
                lines.number += len(block)
            else:
                body.read_rows(lines.texts(block))
            if body.builder.is_full:
                break
    except csv.Error as error:
        remarks.problem(f"{source.path.name}:{lines.number}: not CSV from here on ({error}).")
    if body.uneven:
        remarks.problem(
            f"{source.path.name}: {body.uneven} rows have another number of cells than the header; left out."
        )
    table = body.builder.build()
    if not table.rows:
        raise unreadable(source.path, "is a table without rows", "Give a table with a header and at least one row.")
    return Parsed(table, "CSV", null_is_nan=False)


class _Lines:
    """The lines of a file that were not read yet (``rest``), and the ``number`` of those that were."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.rest = lines
        self.number = 0

    def texts(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            self.number += 1
            text = line.removeprefix(codecs.BOM_UTF8) if self.number == 1 else line
            yield text.decode("utf-8", "replace").replace("\0", "\ufffd")

    def blocks(self) -> Iterator[list[bytes]]:
        block: list[bytes] = []
        size = 0
        for line in self.rest:
            block.append(line)
            size += len(line)
            if size >= _BLOCK:
                yield block
                block, size = [], 0
        if block:
            yield block


class _Body:
    """The rows under a header. Blocks of nothing but numbers are read at once, others cell by cell.

    Both give the same, but for numbers of more than 64 characters, which are text when read cell by cell.
    """

    def __init__(self, header: Sequence[str], delimiter: str) -> None:
        self.builder = TableBuilder(texts_are_numbers=True)
        self.uneven = 0
        self._width, self._delimiter = len(header), delimiter
        self._keys = {name: index for index, name in enumerate(header) if name}
        # The extra 0 makes it a tuple even of a single column.
        self._pick = itemgetter(*self._keys.values(), 0)
        self._refused = 0

    def read_rows(self, texts: Iterable[str]) -> None:
        for cells in csv.reader(texts, delimiter=self._delimiter):
            if not cells:
                continue
            if len(cells) != self._width:
                self.uneven += 1
                continue
            if self.builder.is_full:
                break
            if not _EMPTY.isdisjoint(cells):
                cells = [None if cell in _EMPTY else cell for cell in cells]
            self.builder.add(dict(zip(self._keys, self._pick(cells), strict=False)))

    def read_numbers(self, block: Sequence[bytes]) -> bool:
        """Read a block without quotes; False, and nothing read, where a cell is no number or a row is uneven."""
        # Arrow drops a byte order mark at the start of any block, not only of the file.
        if self._refused > _MOST_REFUSED or block[0].startswith(codecs.BOM_UTF8):
            return False
        content = b"".join(block)
        names = [str(index) for index in range(self._width)]
        try:
            table = arrow_csv.read_csv(
                pyarrow.py_buffer(content),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=2 * len(content) + 1, column_names=names
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter, quote_char=False),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pyarrow.float64()),
                    null_values=list(_EMPTY),
                    include_columns=[str(index) for index in self._keys.values()],
                ),
            )
        except pyarrow.ArrowInvalid:
            self._refused += 1
            return False
        columns = (table.column(str(index)) for index in self._keys.values())
        self.builder.add_numbers(
            {
                name: (column.to_numpy(), column.is_null().to_numpy())
                for name, column in zip(self._keys, columns, strict=True)
            },
            table.num_rows,
        )
        return True


def _delimiter(line: str) -> str:
    return max(_DELIMITERS, key=line.count)


def _header(cells: Sequence[str], remarks: Remarks) -> list[str]:
    """Names of the columns; empty for one that is left out."""
    names = [cell.strip() for cell in cells]
    runs = Counter(name.partition(" - ")[0] for name in names if " - " in name)
    if names[0].lower() == "step" and runs:
        return _exported(names, runs, remarks)
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    if repeated:
        remarks.problem(f"Columns with the same name, of which the last counts: {listed(repeated)}.")
    return [name if name not in names[i + 1 :] else "" for i, name in enumerate(names)]


def _exported(names: Sequence[str], runs: Counter[str], remarks: Remarks) -> list[str]:
    """The web export of wandb: ``Step``, then ``RUN - key`` and its ``__MIN`` and ``__MAX``."""
    run = runs.most_common(1)[0][0]
    others = sorted(name for name in runs if name != run)
    if others:
        remarks.note(f"The table holds several runs; {quoted(run)} was read, not {listed(others)}.")
    kept = ["step"]
    for name in names[1:]:
        owner, _, key = name.partition(" - ")
        is_key = owner == run and bool(key) and not key.endswith(("__MIN", "__MAX")) and key != "_step"
        kept.append(key if is_key else "")
    return kept

"""Tables of comma-, tab- or semicolon-separated values, wandb's exports among them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter

from posttrain.faultmap.readers.numbers import to_number
from posttrain.faultmap.readers.remarks import Remarks, listed, quoted
from posttrain.faultmap.readers.source import Source, unreadable
from posttrain.faultmap.readers.structured import Parsed
from posttrain.faultmap.readers.table import TableBuilder

_DELIMITERS = (",", "\t", ";")
_EMPTY = frozenset(("", "null", "None", "N/A", "NA"))


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
    delimiter = _delimiter(source.head.decode("utf-8-sig", "replace").splitlines()[0])
    rows = csv.reader(_texts(source, remarks), delimiter=delimiter)
    builder = TableBuilder(texts_are_numbers=True)
    uneven = 0
    try:
        header = _header(next(rows), remarks)
        keys = [name for name in header if name]
        # The extra 0 makes it a tuple even of a single column.
        pick = itemgetter(*(i for i, name in enumerate(header) if name), 0)
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(header):
                uneven += 1
                continue
            if builder.is_full:
                break
            if not _EMPTY.isdisjoint(cells):
                cells = [None if cell in _EMPTY else cell for cell in cells]
            builder.add(dict(zip(keys, pick(cells), strict=False)))
    except csv.Error as error:
        remarks.problem(f"{source.path.name}:{rows.line_num}: not CSV from here on ({error}).")
    except StopIteration:
        raise unreadable(source.path, "is empty", "Give a table with a header.") from None
    if uneven:
        remarks.problem(f"{source.path.name}: {uneven} rows have another number of cells than the header; left out.")
    table = builder.build()
    if not table.rows:
        raise unreadable(source.path, "is a table without rows", "Give a table with a header and at least one row.")
    return Parsed(table, "CSV", null_is_nan=False)


def _texts(source: Source, remarks: Remarks) -> Iterator[str]:
    for number, line in enumerate(source.lines(remarks)):
        yield line.decode("utf-8-sig" if number == 0 else "utf-8", "replace").replace("\0", "\ufffd")


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

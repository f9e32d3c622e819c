"""What trainers print amid other text: ``step:1 - key:value - ...`` of verl; dicts of TRL, OpenRLHF and slime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.source import Source, unreadable
from posttrain.faultmap.readers.structured import Parsed
from posttrain.faultmap.readers.table import Table, TableBuilder

PROGRESS = "progress bar"
"""Column that holds the step a progress bar showed just before a dict was printed."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERL = re.compile(r"(?:^|[\s)\]])step:(\d{1,15}) - (?=[^\s:]+:)")
_DICT = re.compile(r"\{\s*['\"][^{}\n]{1,60000}\}")
_PAIR = re.compile(
    r"['\"]([^'\"{}]{1,300})['\"]\s*:\s*('[^'{}]{0,200}'|\"[^\"{}]{0,200}\"|[^,{}'\"\[\]]{1,80})(?=\s*[,}])"
)
_STEP_BEFORE = re.compile(
    r"(?:global[_ ]step|step|rollout|iteration)\s*[:=]?\s*(\d{1,15})(?:\s*[:,]|,\s*eval_metrics:)?\s*$", re.IGNORECASE
)
_PROGRESS_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[\d")
_LONGEST = 100_000
_FEWEST_PAIRS = 2


def has_metrics(head: bytes) -> bool:
    """True if some line of the beginning of a file looks like printed metrics."""
    return any(_row(line) is not None for line in _texts(head.splitlines(keepends=True)))


def read_console(source: Source, remarks: Remarks) -> Parsed:
    """Every line that holds metrics; other text is passed over. Raises InputError where no line does."""
    builder = TableBuilder()
    bar: int | None = None
    for text in _texts(source.lines(remarks)):
        bars = _PROGRESS_BAR.findall(text)
        bar = int(bars[-1][0]) if bars else bar
        row = _row(text)
        if row is None:
            continue
        if builder.is_full:
            break
        builder.add(row if "step" in row or bar is None else {PROGRESS: bar, **row})
    table = builder.build()
    if not table.rows:
        raise unreadable(
            source.path,
            "holds no metrics that are recognised",
            "Known are JSON, JSON lines, CSV, TensorBoard events, Parquet, and the console output of verl, TRL, "
            "OpenRLHF and slime.",
        )
    return Parsed(table, "console output")


def follows_progress(table: Table) -> bool:
    """True if the progress bar's counts number the rows: they are there for most of them and hardly ever go back."""
    column = table.columns.get(PROGRESS)
    if column is None or len(column.rows) * 10 < table.rows * 9:
        return False
    forward = sum(b > a for a, b in zip(column.values, column.values[1:], strict=False))
    return forward * 10 >= (len(column.values) - 1) * 9


def _texts(lines: Iterator[bytes] | list[bytes]) -> Iterator[str]:
    """Lines as text without colours; a progress bar's carriage returns begin new ones."""
    for line in lines:
        if len(line) <= _LONGEST:
            yield from _ANSI.sub("", line.decode("utf-8", "replace")).replace("\r", "\n").split("\n")


def _row(text: str) -> dict[str, object] | None:
    verl = _VERL.search(text)
    if verl:
        return {"step": int(verl[1]), **_verl_pairs(text[verl.end() :])}
    for found in _DICT.finditer(text):
        pairs = {key: value.strip("'\"") for key, value in _PAIR.findall(found[0])}
        if len(pairs) < _FEWEST_PAIRS:
            continue
        row: dict[str, object] = {key: None if value == "None" else value for key, value in pairs.items()}
        before = _STEP_BEFORE.search(text[: found.start()])
        return {"step": int(before[1]), **row} if before and "step" not in row else row
    return None


def _verl_pairs(text: str) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for piece in text.split(" - "):
        key, colon, value = piece.strip().rpartition(":")
        if colon and key and len(key) <= 300 and len(value) <= 80:
            pairs[key] = value
    return pairs

"""One file: which format it has, and its history."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from posttrain.faultmap.history import History, Samples
from posttrain.faultmap.readers.console import PROGRESS, follows_progress, has_metrics, read_console
from posttrain.faultmap.readers.csv_table import looks_like_csv, read_csv
from posttrain.faultmap.readers.derive import derive
from posttrain.faultmap.readers.events import is_event_file, read_events
from posttrain.faultmap.readers.mapping import detect_framework, map_table
from posttrain.faultmap.readers.parquet import Completions, courses_of_completions, is_completions, read_parquet
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.run_directory import is_run, read_run
from posttrain.faultmap.readers.source import Limits, Source, open_source, unreadable
from posttrain.faultmap.readers.structured import Parsed, parse_json, read_document, read_json_lines
from posttrain.faultmap.readers.timeline import timeline
from posttrain.signals.aliases import NAMES
from posttrain.signals.framework import Framework

_JSON_LIST = re.compile(rb"\[\s*[\[{\]]")
_PYTHON_DICT = re.compile(rb"\{\s*'")
_LINES_TRIED = 5
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_SUM_OF_PARTS = "The reward of a completion is the sum of its functions, as with TRL's default weights."


def read_file(path: Path, framework: Framework | None = None, limits: Limits | None = None) -> History:
    """The history in one file. Raises InputError where it cannot be read at all."""
    source = open_source(path, limits)
    if path.name in ("metrics.jsonl", "run.json") and is_run(path.parent):
        return read_run(path.parent)
    remarks = Remarks()
    if source.head.startswith(b"PAR1") and is_completions(path):
        return read_completions([path], remarks)
    parsed = parse(source, remarks)
    return history_of(parsed, str(path), framework, remarks, completions_beside(path, remarks))


def parse(source: Source, remarks: Remarks) -> Parsed:
    """The table in a file, by its content. Raises InputError where it has none."""
    head = source.head
    if head.startswith(b"PAR1"):
        return read_parquet(source)
    if is_event_file(head):
        return read_events([source], remarks)
    _refuse_binary(source)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _JSON_LIST.match(text):
        return read_document(source, remarks)
    if text.startswith(b"{") and not _PYTHON_DICT.match(text):
        return read_json_lines(source, remarks) if _are_json_lines(source) else read_document(source, remarks)
    if looks_like_csv(head) and not has_metrics(head):
        return read_csv(source, remarks)
    return read_console(source, remarks)


def history_of(
    parsed: Parsed, source: str, framework: Framework | None, remarks: Remarks, samples: Samples | None = None
) -> History:
    """The history of a table. Raises InputError where none of its keys is known."""
    known = framework or parsed.framework or detect_framework(parsed.table)
    time = timeline(parsed.table, remarks, (PROGRESS,) if follows_progress(parsed.table) else ())
    plain = known is Framework.PLAIN
    null_is_nan = parsed.null_is_nan and not plain
    mapped = map_table(parsed.table, known, time, remarks, null_is_nan=null_is_nan)
    courses = derive(mapped.courses, known, remarks)
    remarks.notes.insert(0, f"Read as {parsed.kind}{'' if plain else f' of {NAMES[known]}'}.")
    if not courses:
        keys = ", ".join(f"`{u.key}`" for u in mapped.unmapped[:5]) or "none"
        raise unreadable(
            Path(source),
            f"holds no metric that is known (keys: {keys})",
            "Name columns as docs/metrics.md does, such as `reward/mean`, or give --framework.",
        )
    return History(
        known,
        source,
        MappingProxyType(courses),
        parsed.facts,
        samples,
        tuple(remarks.problems),
        tuple(remarks.notes),
        mapped.unmapped,
    )


def read_completions(files: list[Path], remarks: Remarks) -> History:
    """A history of completions that TRL saved, without its metrics."""
    samples = Completions(files, remarks)
    courses = derive(courses_of_completions(samples), Framework.TRL, remarks)
    if not courses:
        raise unreadable(files[0].parent, "holds no completions that can be read", "Give TRL's completions folder.")
    remarks.note("Read as TRL's completions alone: only what they say by themselves is known.")
    remarks.note(_SUM_OF_PARTS)
    return History(
        Framework.TRL,
        str(files[0] if len(files) == 1 else files[0].parent),
        MappingProxyType(courses),
        samples=samples,
        problems=tuple(remarks.problems),
        notes=tuple(remarks.notes),
    )


def completions_beside(path: Path, remarks: Remarks) -> Completions | None:
    """Completions that TRL saved beside a log, or beside the checkpoint the log lies in."""
    for folder in (path.parent, path.parent.parent):
        files = completion_files(folder / "completions")
        if files:
            remarks.note(_SUM_OF_PARTS)
            return Completions(files, remarks)
    return None


def completion_files(folder: Path) -> list[Path]:
    """Files of a completions folder; none where it is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.startswith("completions_") and e.name.endswith(".parquet")]
    except OSError:
        return []
    return sorted(folder / name for name in names if os.path.isfile(folder / name))


def _are_json_lines(source: Source) -> bool:
    """True if one of the first lines is an object by itself. A file of a single line is a document."""
    first = source.first_line()
    if not first.endswith(b"\n"):
        return False
    return any(_is_object(line) for line in [first, *source.head.splitlines()[1:_LINES_TRIED]])


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line.removeprefix(b"\xef\xbb\xbf")), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_binary(source: Source) -> None:
    head = source.head
    if head.startswith(_PICKLES) or (head.startswith(b"PK\x03\x04")):
        raise unreadable(
            source.path,
            "is a pickle or an archive (such as training_args.bin), which is never loaded: it could run code",
            "Give trainer_state.json, a metrics log or TensorBoard events.",
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise unreadable(source.path, "is UTF-16 text", "Save it as UTF-8.")
    if b"\0" in head:
        fix = "Give a log: JSON, JSON lines, CSV, TensorBoard events, Parquet or console output."
        if source.path.suffix == ".wandb":
            fix = "Export the run from wandb as CSV, or save run.scan_history() as JSON lines."
        raise unreadable(source.path, "is a binary file of an unknown kind", fix)


def with_notes(history: History, remarks: Remarks) -> History:
    """The history with further remarks after its own."""
    return replace(
        history,
        problems=(*history.problems, *remarks.problems),
        notes=(*history.notes, *remarks.notes),
    )

"""A folder: find the logs in it, take the best, and say which."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from posttrain.errors import InputError
from posttrain.faultmap.history import History
from posttrain.faultmap.readers.events import read_events
from posttrain.faultmap.readers.files import (
    completion_files,
    completions_beside,
    history_of,
    read_completions,
    read_file,
    with_notes,
)
from posttrain.faultmap.readers.remarks import Remarks, listed, quoted
from posttrain.faultmap.readers.run_directory import is_run, read_run
from posttrain.faultmap.readers.source import Limits, open_source, unreadable
from posttrain.signals.framework import Framework

_DEEPEST = 6
_MOST_ENTRIES = 20_000
_MOST_TRIED = 12
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages"))


class _Kind(IntEnum):
    """Kinds of logs, the one that says most first."""

    TRAINER_STATE = 0
    EVENTS = 1
    LINES = 2
    TABLE = 3
    DOCUMENT = 4
    CONSOLE = 5


@dataclass(frozen=True, slots=True)
class _Log:
    kind: _Kind
    path: Path
    size: int


def read_folder(path: Path, framework: Framework | None = None, limits: Limits | None = None) -> History:
    """The history in a folder: a run of posttrain, or the log in it that says most. Raises InputError without any."""
    if is_run(path):
        return read_run(path)
    remarks = Remarks()
    logs, runs = _search(path, remarks)
    if len(runs) == 1:
        return read_run(runs[0])
    if runs:
        names = listed([str(run.relative_to(path)) for run in runs])
        raise unreadable(path, f"holds several runs ({names})", "Give the directory of one.")
    own = completion_files(path)
    if own and not logs:
        return with_notes(read_completions(own, Remarks()), remarks)
    history = _best(path, logs, framework, limits, remarks)
    if history is not None:
        return with_notes(history, remarks)
    beside = completion_files(path / "completions")
    if beside:
        return with_notes(read_completions(beside, Remarks()), remarks)
    tried = f"; looked at {listed([str(log.path.relative_to(path)) for log in logs])}" if logs else ""
    raise unreadable(
        path,
        f"holds no log that can be read{tried}",
        "Give a run directory, trainer_state.json, JSON lines, CSV, TensorBoard events or console output.",
    )


def _best(
    path: Path, logs: list[_Log], framework: Framework | None, limits: Limits | None, remarks: Remarks
) -> History | None:
    """The first log that can be read; event files instead of a trainer state where they reach further."""
    taken: History | None = None
    used: set[Path] = set()
    failed: list[str] = []
    for log in logs[:_MOST_TRIED]:
        if taken is not None and not (_kind_of(taken, logs) is _Kind.TRAINER_STATE and log.kind is _Kind.EVENTS):
            break
        try:
            found, files = _read(log, logs, framework, limits)
        except InputError as error:
            failed.append(f"{log.path.relative_to(path)}: {error.problem}")
            continue
        if taken is None or _reach(found) > _reach(taken):
            taken, used = found, set(files)
        if log.kind is _Kind.EVENTS:
            break
    if taken is None:
        return None
    for reason in failed:
        remarks.problem(f"Not read: {reason}.")
    remarks.note(f"Of the folder, {quoted(os.path.relpath(taken.source, path))} was read.")
    others = [str(log.path.relative_to(path)) for log in logs if log.path not in used]
    if others:
        remarks.note(f"Other logs there: {listed(others)}. Give one of them to read it instead.")
    return taken


def _kind_of(history: History, logs: list[_Log]) -> _Kind | None:
    """Kind of the log a history was read from."""
    return next((log.kind for log in logs if str(log.path) == history.source), None)


def _read(
    log: _Log, logs: list[_Log], framework: Framework | None, limits: Limits | None
) -> tuple[History, list[Path]]:
    if log.kind is not _Kind.EVENTS:
        return read_file(log.path, framework, limits), [log.path]
    together = sorted(other.path for other in logs if other.kind is log.kind and other.path.parent == log.path.parent)
    remarks = Remarks()
    parsed = read_events([open_source(one, limits) for one in together], remarks)
    if len(together) > 1:
        remarks.note(f"{len(together)} event files of one folder were read as one run.")
    history = history_of(parsed, str(log.path), framework, remarks, completions_beside(log.path.parent, remarks))
    return history, together


def _reach(history: History) -> int:
    steps = history.steps
    return int(steps[-1]) if len(steps) else -1


def _preference(log: _Log) -> tuple[int, int, int, str]:
    """By kind; a trainer state at the top or of the latest checkpoint; names that say metrics; the largest."""
    checkpoint = _CHECKPOINT.fullmatch(log.path.parent.name)
    age = -(int(checkpoint[1]) if checkpoint else 2**53) if log.kind is _Kind.TRAINER_STATE else 0
    named = 0 if any(word in log.path.name.lower() for word in ("metric", "history", "log", "train")) else 1
    return (log.kind, age or named, -log.size, str(log.path))


def _kind(name: str) -> _Kind | None:
    plain = name.removesuffix(".gz").lower()
    if plain == "trainer_state.json":
        return _Kind.TRAINER_STATE
    if ".tfevents." in plain:
        return _Kind.EVENTS
    endings = {
        ".jsonl": _Kind.LINES,
        ".ndjson": _Kind.LINES,
        ".csv": _Kind.TABLE,
        ".tsv": _Kind.TABLE,
        ".json": _Kind.DOCUMENT,
        ".log": _Kind.CONSOLE,
        ".txt": _Kind.CONSOLE,
        ".out": _Kind.CONSOLE,
    }
    return endings.get(os.path.splitext(plain)[1])


def _search(path: Path, remarks: Remarks) -> tuple[list[_Log], list[Path]]:
    """Logs in a folder, the preferred first, and run directories of posttrain."""
    logs: list[_Log] = []
    runs: list[Path] = []
    for entry in _walk(path, remarks):
        kind = _kind(entry.name)
        try:
            if kind is not None and entry.is_file():
                logs.append(_Log(kind, Path(entry.path), entry.stat().st_size))
            elif entry.is_dir(follow_symlinks=False) and is_run(Path(entry.path)):
                runs.append(Path(entry.path))
        except OSError:
            continue
    return sorted(logs, key=_preference), runs


def _walk(path: Path, remarks: Remarks) -> Iterator[os.DirEntry[str]]:
    """Entries of a folder and the folders in it, a few levels deep. Links to folders are not followed."""
    waiting = [(str(path), 0)]
    seen = 0
    while waiting:
        folder, depth = waiting.pop(0)
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            remarks.problem(f"{folder}: cannot be read ({error.strerror or error}).")
            continue
        for entry in found:
            seen += 1
            if seen > _MOST_ENTRIES:
                remarks.problem(f"The folder has more than {_MOST_ENTRIES:,} entries; only those were searched.")
                return
            yield entry
            hidden = entry.name.startswith(".") or entry.name in _SKIPPED
            if depth < _DEEPEST and not hidden and entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, depth + 1))

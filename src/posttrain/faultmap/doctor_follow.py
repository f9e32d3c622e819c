"""Says a diagnosis again while the log grows: what is new, worse, better or over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from posttrain.errors import InputError
from posttrain.faultmap.change import Change, Event, changes
from posttrain.faultmap.diagnosis import Diagnosis
from posttrain.faultmap.doctor_text import finding_line, print_diagnosis, verdict
from posttrain.faultmap.printable import one_line

_SECONDS_BETWEEN_LOOKS = 2.0


def follow(
    path: Path, look: Callable[[], Diagnosis], console: Console, *, sleep: Callable[[float], None] = time.sleep
) -> Diagnosis:
    """Print what ``look`` finds, then what changes in it as ``path`` grows, until Ctrl-C. Returns the last diagnosis.

    Raises InputError if the first look cannot read the log; later ones may fail and are told.
    """
    seen = stamp(path)
    diagnosis = look()
    print_diagnosis(diagnosis, console)
    console.print(Text("Following; Ctrl-C ends.", style="dim"))
    with suppress(KeyboardInterrupt):
        while True:
            sleep(_SECONDS_BETWEEN_LOOKS)
            now = stamp(path)
            if now == seen:
                continue
            seen = now
            try:
                later = look()
            except InputError as error:  # a file being replaced is not there for a moment
                console.print(Text(one_line(str(error)), style="yellow"))
                continue
            for line in change_lines(diagnosis, later):
                console.print(line)
            diagnosis = later
    return diagnosis


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of a file, or of the files in a directory and one level below."""
    return tuple(sorted(_stamps(path, 2)))


def _stamps(path: Path, depth: int) -> Iterator[tuple[str, int, int]]:
    try:
        if not path.is_dir():
            found = path.stat()
            yield str(path), found.st_size, found.st_mtime_ns
        elif depth:
            with os.scandir(path) as entries:
                for entry in entries:
                    yield from _stamps(Path(entry.path), depth - 1)
    except OSError:
        return


def change_lines(before: Diagnosis, after: Diagnosis) -> list[Text]:
    """What changed, one line each, and the verdict; nothing where nothing did."""
    lines = [_line(change, _last_step(after)) for _, change in changes(before.all_findings, after.all_findings)]
    return [*lines, verdict(after)] if lines else []


def _line(change: Change, step: int) -> Text:
    line = Text.assemble((f"step {step}  ", "dim"), f"{change.event}  ", finding_line(change.finding))
    return line if change.event is Event.GONE else line.append(f"  {one_line(change.finding.summary)}")


def _last_step(diagnosis: Diagnosis) -> int:
    return max((int(c.steps[-1]) for c in diagnosis.history.courses.values() if len(c)), default=0)

"""A file somebody gives us, opened with care: regular files only, bounded lines, bounded totals, nothing executed."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from posttrain.errors import InputError
from posttrain.faultmap.readers.remarks import Remarks

MIB = 1 << 20
_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What is not read: bytes of a line, of a JSON document, of everything, of everything unpacked; and lines."""

    line: int = 16 * MIB
    document: int = 256 * MIB
    stream: int = 16 * 1024 * MIB
    unpacked: int = 1024 * MIB
    lines: int = 20_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """A readable file. Make one with ``open_source``."""

    path: Path
    size: int
    packed: bool
    head: bytes
    """The first bytes, unpacked."""
    limits: Limits

    @property
    def name(self) -> str:
        """The file's name, without the ending of a packed one."""
        name = self.path.name
        return name[:-3] if self.packed and name.endswith(".gz") else name

    @contextmanager
    def open(self) -> Generator[BinaryIO]:
        """The content, unpacked."""
        with self.path.open("rb") as raw:
            yield cast("BinaryIO", io.BufferedReader(gzip.GzipFile(fileobj=raw))) if self.packed else raw

    def lines(self, remarks: Remarks) -> Iterator[bytes]:
        """The lines, one by one. What stops it early (a line too long, a damaged archive) is told to ``remarks``."""
        total, number = 0, 0
        most = self.limits.unpacked if self.packed else self.limits.stream
        with self.open() as file:
            while True:
                number += 1
                try:
                    line = file.readline(self.limits.line + 1)
                except (OSError, EOFError, zlib.error) as error:
                    remarks.problem(f"{self.path.name}:{number}: the file is cut off or damaged here ({error}).")
                    return
                if not line:
                    return
                total += len(line)
                if len(line) > self.limits.line:
                    remarks.problem(
                        f"{self.path.name}:{number}: a line longer than {self.limits.line // MIB} MiB; reading stopped."
                    )
                    return
                if total > most or number > self.limits.lines:
                    remarks.problem(f"{self.path.name}: only the first {number - 1:,} lines were read: it is too long.")
                    return
                yield line

    def first_line(self) -> bytes:
        """The first line that is not empty, or the beginning of it where it is longer than a line may be."""
        head = self.head.lstrip()
        line, newline, _ = head.partition(b"\n")
        if newline:
            return line + newline
        with self.open() as file:
            try:
                line = file.readline(self.limits.line + 1)
                return line if line.strip() else file.readline(self.limits.line + 1)
            except (OSError, EOFError, zlib.error):
                return head

    def document(self) -> bytes:
        """The whole content. Raises InputError where it is too large for one document, or damaged."""
        most = self.limits.document
        try:
            with self.open() as file:
                content = file.read(most + 1) if self.packed or self.size <= most else b""
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(self.path, f"is damaged ({error})", "Copy it again.") from error
        if max(len(content), 0 if self.packed else self.size) > most:
            raise unreadable(
                self.path,
                f"is one JSON document or one line of more than {most // MIB} MiB",
                "Give JSON lines (one object a line), which are read as a stream.",
            )
        return content


def open_source(path: Path, limits: Limits | None = None) -> Source:
    """Look at a file. Raises InputError if it is no regular file, empty, or cannot be opened."""
    chosen = limits or Limits()
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _missing(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise unreadable(path, "is a device or a pipe, not a file", "Save the log to a file first.")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            head = _unpacked_head(path, file) if packed else file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, f"cannot be read ({error.strerror or error})", "Check its permissions.") from error
    if not head.strip():
        raise unreadable(path, "is empty", "Give a log that has at least one step.")
    return Source(path, status.st_size, packed, head, chosen)


def unreadable(path: Path, problem: str, fix: str) -> InputError:
    """The error of a log that cannot be read."""
    return InputError("PATH", str(path), problem, fix)


def _unpacked_head(path: Path, file: BinaryIO) -> bytes:
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            return unpacked.read(_HEAD)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, f"is a damaged gzip file ({error})", "Copy it again.") from error


def _missing(path: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return unreadable(path, "does not exist", "Give a log file, a run directory or a folder with logs.")
    reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return unreadable(path, f"cannot be opened ({reason})", "Give a log file, a run directory or a folder with logs.")

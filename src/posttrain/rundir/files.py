"""Small file operations that leave either the old content or the new one, and JSON that any parser reads."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from posttrain.errors import InputError, PosttrainError


class DamagedFileError(PosttrainError, ValueError):
    """A file of a run directory that cannot be read; the message names it and says why."""

    exit_code = 2

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


def replace_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` produce a file under a temporary name, flush it to disk and give it its name.

    A reader, or a process killed at any point, sees the old file or the new one, never a part. A link is followed.
    Raises OSError if something is there that is no file: a device or a pipe would be replaced, not written to.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_directory(path.parent)


def check_output(setting: str, path: Path) -> None:
    """Raise InputError if a file cannot be written at ``path``: before the work whose result it is to hold."""
    parent = path.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(setting, str(path), "is there and is not a file", "Give the name of a file.")
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        fix = "Give a file in a writable directory."
        raise InputError(setting, str(path), f"cannot be written: {parent} is no directory one can write to", fix)


def flush_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN or infinity literals: a non-finite number becomes ``null``. Raises TypeError on other types."""
    return json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, indent=indent)


def write_json(path: Path, value: Any) -> None:
    """Write strict, indented JSON atomically."""
    text = strict_json(value, indent=1) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    replace_atomically(path, write)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DamagedFileError where there is none."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedFileError(path, "does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"is not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFileError(path, "does not hold a JSON object")
    return cast("dict[str, Any]", value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any]", value)]
    return value

"""Checkpoints that are either complete or not there.

A checkpoint is written into a hidden directory beside its final place, described by a manifest (size and
SHA-256 of every file), flushed to disk and then renamed. The rename is the commit point: a directory named
``step_000010`` was complete when it got that name, and the manifest tells if it still is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import InputError, PosttrainError

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1
_STEP_NAME = re.compile(r"step_(\d{6,})")
_HIDDEN_NAME = re.compile(r"\.step_\d{6,}\.(tmp|old)-[0-9a-f]+")


class DamagedCheckpointError(PosttrainError, OSError):
    """A checkpoint directory that does not match its manifest; the message says which file and how."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint. ``path`` is relative with forward slashes; ``sha256`` is lower-case hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds. ``metadata`` is JSON-compatible and belongs to the writer."""

    step: int
    files: tuple[FileEntry, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, the manifest excluded."""
        return sum(entry.bytes for entry in self.files)


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A checkpoint that was passed over, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class LatestGood:
    """The newest checkpoint that is whole (``None`` if there is none) and every newer one that is not."""

    path: Path | None
    manifest: Manifest | None
    skipped: tuple[SkippedCheckpoint, ...]


def checkpoint_path(directory: Path, step: int) -> Path:
    """Final place of the checkpoint of a step."""
    return directory / f"step_{step:06d}"


def step_of(path: Path) -> int | None:
    """Step of a checkpoint directory by its name, or ``None`` if it has no checkpoint name."""
    match = _STEP_NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def write_checkpoint(
    directory: Path, step: int, write: Callable[[Path], None], metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint and commit it by rename; returns its final path.

    ``write`` fills the directory it is given. If it raises, or the process dies at any point before the
    rename, no directory with a checkpoint name appears. A checkpoint of the same step is replaced.
    Raises InputError if ``write`` leaves the directory empty, uses the manifest's name or makes links.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = checkpoint_path(directory, step)
    temporary = directory / f".{final.name}.tmp-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        write(temporary)
        _seal(temporary, step, dict(metadata or {}))
        _rename_over(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises DamagedCheckpointError if it is missing or malformed."""
    try:
        raw = json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path.name}: {MANIFEST_NAME} is missing") from None
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(f"{path.name}: {MANIFEST_NAME} cannot be read ({error})") from error
    try:
        if raw["schema_version"] != SCHEMA_VERSION:
            raise DamagedCheckpointError(
                f"{path.name}: manifest has schema version {raw['schema_version']}, this program reads {SCHEMA_VERSION}"
            )
        files = tuple(FileEntry(str(f["path"]), int(f["bytes"]), str(f["sha256"])) for f in raw["files"])
        manifest = Manifest(int(raw["step"]), files, dict(raw["metadata"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpointError(f"{path.name}: {MANIFEST_NAME} is malformed ({error!r})") from error
    for entry in manifest.files:
        _inside(path, entry.path)
    return manifest


def verify_checkpoint(path: Path, *, hashes: bool = True) -> Manifest:
    """Check a checkpoint against its manifest: every file there, sizes equal and, with ``hashes``, contents equal.

    Raises DamagedCheckpointError naming the first file that is wrong.
    """
    manifest = read_manifest(path)
    if manifest.step != step_of(path):
        raise DamagedCheckpointError(f"{path.name}: its manifest is for step {manifest.step}")
    for entry in manifest.files:
        file = _inside(path, entry.path)
        if not file.is_file():
            raise DamagedCheckpointError(f"{path.name}: {entry.path} is missing")
        size = file.stat().st_size
        if size != entry.bytes:
            raise DamagedCheckpointError(f"{path.name}: {entry.path} has {size} bytes, {entry.bytes} were written")
    if hashes:
        for entry in manifest.files:
            if _sha256(path / entry.path) != entry.sha256:
                raise DamagedCheckpointError(f"{path.name}: {entry.path} differs from what was written (SHA-256)")
    return manifest


def list_checkpoints(directory: Path) -> list[Path]:
    """Committed checkpoints, oldest step first. Nothing is read inside them."""
    if not directory.is_dir():
        return []
    found = [(step, p) for p in directory.iterdir() if p.is_dir() and (step := step_of(p)) is not None]
    return [path for _, path in sorted(found)]


def latest_good(directory: Path, *, hashes: bool = True) -> LatestGood:
    """The newest checkpoint that verifies; damaged newer ones are named, never silently passed over."""
    skipped: list[SkippedCheckpoint] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            manifest = verify_checkpoint(path, hashes=hashes)
        except DamagedCheckpointError as error:
            skipped.append(SkippedCheckpoint(path, str(error)))
        else:
            return LatestGood(path, manifest, tuple(skipped))
    return LatestGood(None, None, tuple(skipped))


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete all but the newest ``keep`` whole checkpoints; returns what was deleted.

    A damaged checkpoint does not count as one of the kept: if the newest is damaged, the one to fall back
    to stays. (Sizes are checked, hashes are not: this runs after every save.) Damaged ones are left for the
    user to see; only whole ones older than the kept are deleted.
    """
    if keep < 1:
        raise InputError("checkpoint.keep", keep, "at least one checkpoint must stay", "Use 1 or more")
    whole: list[Path] = []
    for path in list_checkpoints(directory):
        try:
            verify_checkpoint(path, hashes=False)
        except DamagedCheckpointError:
            continue
        whole.append(path)
    doomed = whole[:-keep]
    for path in doomed:
        hidden = directory / f".{path.name}.old-{secrets.token_hex(4)}"
        path.rename(hidden)
        shutil.rmtree(hidden)
    return doomed


def remove_leftovers(directory: Path) -> list[Path]:
    """Delete half-written or half-deleted checkpoints of a dead process; returns their paths.

    Only to be called while no other process writes to the run.
    """
    if not directory.is_dir():
        return []
    leftovers = [p for p in sorted(directory.iterdir()) if p.is_dir() and _HIDDEN_NAME.fullmatch(p.name)]
    for path in leftovers:
        shutil.rmtree(path)
    return leftovers


def _seal(directory: Path, step: int, metadata: dict[str, Any]) -> None:
    entries: list[FileEntry] = []
    folders = [directory]
    for path in _walk(directory):
        if path.is_symlink():
            raise InputError("checkpoint", path.name, "is a link", "Write plain files into a checkpoint")
        if path.is_dir():
            folders.append(path)
            continue
        name = path.relative_to(directory).as_posix()
        if name == MANIFEST_NAME:
            raise InputError("checkpoint", name, "is the manifest's name", "Write the file under another name")
        entries.append(FileEntry(name, path.stat().st_size, _sha256(path)))
        _sync(path)
    if not entries:
        raise InputError("checkpoint", directory.name, "nothing was written", "Write at least one file")
    document = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "metadata": metadata,
        "files": [{"path": e.path, "bytes": e.bytes, "sha256": e.sha256} for e in entries],
    }
    manifest = directory / MANIFEST_NAME
    manifest.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    _sync(manifest)
    for folder in folders:
        _sync(folder)


def _rename_over(temporary: Path, final: Path) -> None:
    replaced: Path | None = None
    if final.exists():
        replaced = final.with_name(f".{final.name}.old-{secrets.token_hex(4)}")
        final.rename(replaced)
    temporary.rename(final)
    _sync(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def _walk(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _inside(directory: Path, name: str) -> Path:
    """Join, refusing a manifest entry that points out of the checkpoint."""
    parts = name.split("/")
    if not name or name.startswith("/") or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise DamagedCheckpointError(f"{directory.name}: manifest names a file outside the checkpoint ({name!r})")
    return directory.joinpath(*parts)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Checkpoints: complete or not there, even when the writer is killed; damage is found and named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import InputError
from posttrain.rundir.checkpoints import (
    MANIFEST_NAME,
    DamagedCheckpointError,
    checkpoint_path,
    latest_good,
    list_checkpoints,
    prune,
    remove_leftovers,
    verify_checkpoint,
    write_checkpoint,
)


def _write(directory: Path, step: int, content: bytes = b"weights") -> Path:
    def fill(folder: Path) -> None:
        (folder / "model.bin").write_bytes(content)
        (folder / "state").mkdir()
        (folder / "state" / "optimizer.bin").write_bytes(content * 3)

    return write_checkpoint(directory, step, fill, {"policy_version": step})


def test_a_written_checkpoint_verifies_and_says_what_it_holds(tmp_path: Path) -> None:
    path = _write(tmp_path / "checkpoints", 10)
    assert path.name == "step_000010"
    manifest = verify_checkpoint(path)
    assert manifest.step == 10
    assert manifest.metadata == {"policy_version": 10}
    assert {f.path: f.bytes for f in manifest.files} == {"model.bin": 7, "state/optimizer.bin": 21}
    assert manifest.total_bytes == 28
    assert [p.name for p in path.parent.iterdir()] == ["step_000010"]


def test_a_writer_that_raises_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_checkpoint(tmp_path, 1, fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["while writing", "before the rename"])
def test_a_killed_writer_leaves_no_checkpoint(tmp_path: Path, moment: str) -> None:
    """A real process is killed with SIGKILL in the middle."""
    program = f"""
import sys, time
from pathlib import Path
from posttrain.rundir import checkpoints
def stall(*_):
    print("ready", flush=True)
    time.sleep(60)
def fill(folder):
    (folder / "model.bin").write_bytes(b"x" * 1000)
    if {moment!r} == "while writing":
        stall()
if {moment!r} == "before the rename":
    checkpoints._rename_over = stall
checkpoints.write_checkpoint(Path(sys.argv[1]), 7, fill)
"""
    _write(tmp_path, 3)
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000003"]
    assert latest_good(tmp_path).path == checkpoint_path(tmp_path, 3)
    assert len(remove_leftovers(tmp_path)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step_000003"]


def _truncate(path: Path) -> None:
    with (path / "model.bin").open("r+b") as stream:
        stream.truncate(3)


def _flip(path: Path) -> None:
    data = bytearray((path / "model.bin").read_bytes())
    data[0] ^= 1
    (path / "model.bin").write_bytes(data)


def _edit_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    (path / MANIFEST_NAME).write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_truncate, "model.bin has 3 bytes, 7 were written"),
        (_flip, "model.bin differs"),
        (lambda p: (p / "state" / "optimizer.bin").unlink(), "state/optimizer.bin is missing"),
        (lambda p: (p / MANIFEST_NAME).unlink(), "manifest.json is missing"),
        (lambda p: (p / MANIFEST_NAME).write_text("{"), "cannot be read"),
        (lambda p: (p / MANIFEST_NAME).write_text("[]"), "malformed"),
        (lambda p: _edit_manifest(p, step=4), "is for step 4"),
        (lambda p: _edit_manifest(p, schema_version=99), "schema version 99"),
        (lambda p: _edit_manifest(p, files=[{"path": "../../x", "bytes": 1, "sha256": ""}]), "outside"),
        (lambda p: _edit_manifest(p, files=[{"path": "/etc/passwd", "bytes": 1, "sha256": ""}]), "outside"),
    ],
)
def test_damage_is_named_and_the_one_before_is_taken(tmp_path: Path, damage, why: str) -> None:
    _write(tmp_path, 5)
    damage(_write(tmp_path, 10))
    found = latest_good(tmp_path)
    assert found.path == checkpoint_path(tmp_path, 5)
    assert found.manifest is not None
    assert found.manifest.step == 5
    assert [s.path.name for s in found.skipped] == ["step_000010"]
    assert why in found.skipped[0].why
    with pytest.raises(DamagedCheckpointError):
        verify_checkpoint(checkpoint_path(tmp_path, 10))


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert latest_good(tmp_path / "none").path is None
    _truncate(_write(tmp_path, 1))
    found = latest_good(tmp_path)
    assert found.path is None
    assert len(found.skipped) == 1


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 2):
        _write(tmp_path, step)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002", "step_999999", "step_1000000"]


def test_a_redone_step_replaces_its_checkpoint(tmp_path: Path) -> None:
    _write(tmp_path, 4, b"first")
    path = _write(tmp_path, 4, b"second")
    assert (path / "model.bin").read_bytes() == b"second"
    verify_checkpoint(path)
    assert len(list(tmp_path.iterdir())) == 1


def test_prune_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _write(tmp_path, step)
    _truncate(checkpoint_path(tmp_path, 4))
    assert [p.name for p in prune(tmp_path, 1)] == ["step_000001", "step_000002"]
    assert latest_good(tmp_path).path == checkpoint_path(tmp_path, 3), "the one to fall back to must stay"
    with pytest.raises(InputError, match=r"checkpoint\.keep = 0"):
        prune(tmp_path, 0)


@pytest.mark.parametrize(
    ("fill", "match"),
    [
        (lambda f: None, "nothing was written"),
        (lambda f: (f / MANIFEST_NAME).write_text("{}"), "manifest's name"),
        (lambda f: (f / "link").symlink_to("/etc/passwd"), "is a link"),
    ],
)
def test_what_a_checkpoint_may_not_hold(tmp_path: Path, fill, match: str) -> None:
    with pytest.raises(InputError, match=match):
        write_checkpoint(tmp_path, 1, fill)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_being_written_is_invisible_to_readers(tmp_path: Path) -> None:
    seen: list[list[Path]] = []

    def fill(folder: Path) -> None:
        (folder / "a").write_bytes(b"1")
        seen.append(list_checkpoints(tmp_path))

    write_checkpoint(tmp_path, 1, fill)
    assert seen == [[]]

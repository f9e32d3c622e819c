"""The run directory: one place per run, created whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.errors import InputError
from posttrain.rundir.files import flush_directory, read_json_object, write_json
from posttrain.rundir.info import AttemptInfo, MachineInfo, RunInfo, read_run_info, write_run_info
from posttrain.rundir.trajectories import write_trajectories
from posttrain.trajectory import Trajectory

_STEP_FILE = re.compile(r"step_(\d{6,})\.parquet")
_EVALUATION_FILE = re.compile(r"step_(\d{6,})_(.+)\.parquet")
_FOLDERS = ("trajectories", "evaluation", "checkpoints")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths and files of one run. Get one from ``create`` or ``open``."""

    path: Path

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> RunDirectory:
        """Make the directory with its ``run.json``. Parents are created.

        Raises InputError if the path exists and is not an empty directory, or cannot be written; then nothing
        is left behind.
        """
        # os.path answers no where pathlib raises on a parent without permission; making it then says why.
        if os.path.isdir(path) and _is_empty(path):
            # In place: its parent may be read-only, and a mount point cannot be renamed onto.
            try:
                _populate(path, info)
            except OSError as error:
                raise _unwritable(path, error) from error
            return cls(path)
        if os.path.lexists(path):
            fix = (
                f"Give another --run, or go on with it: posttrain resume {path}"
                if os.path.isfile(path / "run.json")
                else "Give another --run, or an empty directory."
            )
            raise InputError("--run", str(path), "exists already", fix)
        first_missing = _first_missing(path.parent)
        temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            _populate(temporary, info)
            # A rename onto a directory that another process has filled in the meantime fails.
            temporary.rename(path)
            flush_directory(path.parent)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _remove_empty(path.parent, first_missing)
            raise _unwritable(path, error) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. Raises InputError if there is none."""
        if not os.path.isdir(path):
            raise InputError("run", str(path), "is not a directory", "Give the directory of a run.")
        if not os.path.isfile(path / "run.json"):
            raise InputError("run", str(path), "holds no run.json", "Give the directory of a run.")
        return cls(path)

    @property
    def info_path(self) -> Path:
        """``run.json``."""
        return self.path / "run.json"

    @property
    def metrics_path(self) -> Path:
        """``metrics.jsonl``."""
        return self.path / "metrics.jsonl"

    @property
    def engine_path(self) -> Path:
        """``engine.jsonl``."""
        return self.path / "engine.jsonl"

    @property
    def findings_path(self) -> Path:
        """``findings.jsonl``, what the detectors said while the run was training."""
        return self.path / "findings.jsonl"

    @property
    def journal_path(self) -> Path:
        """``journal.sqlite``, the life of every task and group."""
        return self.path / "journal.sqlite"

    @property
    def checkpoints_path(self) -> Path:
        """``checkpoints/``."""
        return self.path / "checkpoints"

    @property
    def model_path(self) -> Path:
        """``model/``, the trained model in Hugging Face format."""
        return self.path / "model"

    @property
    def tensorboard_path(self) -> Path:
        """``tensorboard/``, event files."""
        return self.path / "tensorboard"

    @property
    def evaluation_summary_path(self) -> Path:
        """``evaluation/summary.json``."""
        return self.path / "evaluation" / "summary.json"

    def trajectory_path(self, step: int) -> Path:
        """File of the trajectories of one step."""
        return self.path / "trajectories" / f"step_{step:06d}.parquet"

    def evaluation_path(self, step: int, name: str) -> Path:
        """File of the trajectories of one evaluation; ``name`` is the environment, or environment and mode."""
        return self.path / "evaluation" / f"step_{step:06d}_{_file_name(name)}.parquet"

    def trajectory_files(self) -> dict[int, Path]:
        """Trajectory files by step, in order."""
        found = ((_STEP_FILE.fullmatch(p.name), p) for p in _files(self.path / "trajectories"))
        return dict(sorted((int(match[1]), path) for match, path in found if match))

    def evaluation_files(self) -> dict[tuple[int, str], Path]:
        """Evaluation files by step and name, in order."""
        found = ((_EVALUATION_FILE.fullmatch(p.name), p) for p in _files(self.path / "evaluation"))
        return dict(sorted(((int(match[1]), match[2]), path) for match, path in found if match))

    def write_step(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        completions: Sequence[str] | None = None,
        discard_reasons: Mapping[str, str] | None = None,
    ) -> Path:
        """Write the trajectories of a step. A step that is done again replaces its file."""
        path = self.trajectory_path(step)
        write_trajectories(path, trajectories, completions, discard_reasons)
        return path

    def write_evaluation(
        self, step: int, name: str, trajectories: Sequence[Trajectory], completions: Sequence[str] | None = None
    ) -> Path:
        """Write the trajectories of an evaluation."""
        path = self.evaluation_path(step, name)
        write_trajectories(path, trajectories, completions)
        return path

    def info(self) -> RunInfo:
        """Read ``run.json``. Raises DamagedFileError."""
        return read_run_info(self.info_path)

    def write_info(self, info: RunInfo) -> None:
        """Replace ``run.json`` atomically."""
        write_run_info(self.info_path, info)

    def begin_attempt(self, machine: MachineInfo, resumed_from_step: int | None = None) -> AttemptInfo:
        """Record that a process starts to work on the run. Its number is one above all others."""
        info = self.info()
        number = max((a.attempt for a in info.attempts), default=0) + 1
        attempt = AttemptInfo(number, time.time(), resumed_from_step, machine=machine)
        self.write_info(info.with_attempt(attempt))
        return attempt

    def end_attempt(self, attempt: AttemptInfo, outcome: str, detail: str = "") -> None:
        """Record how an attempt ended: ``finished``, ``interrupted``, ``stopped`` or ``failed``, and why."""
        ended = replace(attempt, ended=time.time(), outcome=outcome, detail=detail)
        self.write_info(self.info().with_attempt(ended))

    def write_evaluation_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``evaluation/summary.json`` atomically, as strict JSON."""
        write_json(self.evaluation_summary_path, summary)

    def evaluation_summary(self) -> dict[str, Any] | None:
        """Read ``evaluation/summary.json``; ``None`` if it was not written yet. Raises DamagedFileError."""
        path = self.evaluation_summary_path
        return read_json_object(path) if path.exists() else None

    @contextmanager
    def lock(self) -> Generator[None]:
        """Hold the run for this process, as long as it lives. Raises InputError if another process holds it."""
        import fcntl  # not on Windows, where runs can be read but not made

        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    "run", str(self.path), "another process is working on it", "Wait for it, or stop it first."
                ) from error
            yield


def default_run_path(name: str, now: float, root: Path = Path("runs")) -> Path:
    """``runs/NAME-DATE``, with a number behind it if that exists. ``now`` is in seconds since the epoch."""
    base = f"{_file_name(name)}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
    candidates = (root / (base if n == 1 else f"{base}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _populate(path: Path, info: RunInfo) -> None:
    """Folders first, ``run.json`` last: its presence means the directory is whole."""
    made: list[Path] = []
    try:
        for folder in _FOLDERS:
            (path / folder).mkdir()
            made.append(path / folder)
        write_run_info(path / "run.json", info)
    except OSError:
        for folder in made:
            folder.rmdir()
        raise


def _unwritable(path: Path, error: OSError) -> InputError:
    if os.path.exists(path) and not _is_empty(path):
        return InputError("--run", str(path), "exists already", "Give another --run.")
    return InputError(
        "--run", str(path), f"cannot be written ({error.strerror or error})", "Give a --run in a writable directory."
    )


def _first_missing(path: Path) -> Path | None:
    missing = [p for p in (path, *path.parents) if not os.path.exists(p)]
    return missing[-1] if missing else None


def _remove_empty(path: Path, first_missing: Path | None) -> None:
    if first_missing is None:
        return
    for directory in (path, *path.parents):
        try:
            directory.rmdir()
        except OSError:
            return
        if directory == first_missing:
            return


def _is_empty(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is None
    except OSError:
        return False


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else []


def _file_name(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")
    return cleaned or "run"

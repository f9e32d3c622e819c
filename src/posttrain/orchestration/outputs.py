"""What every kind of run writes and prints around its loop: console, tokenizer, final model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from posttrain.errors import InputError
from posttrain.model.load import LoadedModel
from posttrain.model.lora import LoraPolicy, save_adapter, save_merged
from posttrain.rundir.directory import RunDirectory


class LastingConsole(Console):
    """Falls silent when the reader of its output has left; rich would end the process, and the run with it."""

    def on_broken_pipe(self) -> None:
        """Go on without output."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_writable(path: Path) -> None:
    """Refuse an existing or unwritable place before minutes are spent on loading. Raises InputError."""
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        fix = f"Give another --run, or go on with it: posttrain resume {path}"
        raise InputError("--run", str(path), "exists already", fix)
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        raise InputError("--run", str(path), f"{parent} is not writable", "Give a place you can write to")


def save_tokenizer(loaded: LoadedModel, run: RunDirectory) -> None:
    """Write ``tokenizer.json``, by which reports show the text of single tokens before there is a model."""
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.save(str(run.path / "tokenizer.json"))


def save_model(loaded: LoadedModel, lora: LoraPolicy | None, run: RunDirectory) -> None:
    """Write ``model/`` (and ``adapter/`` under LoRA) whole or not at all. The run's lock is held."""
    replace_folder(run.model_path, lambda folder: save_merged(loaded.model, loaded.tokenizer, folder))
    if lora is not None:
        replace_folder(run.path / "adapter", lambda folder: save_adapter(lora, folder))


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside its place and move it there; what an earlier process left unfinished is removed."""
    for leftover in target.parent.glob(f".{target.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    write(temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)

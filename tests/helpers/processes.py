"""The command line in real processes that are forked from a warm one, so that a test can afford to kill many."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRELOADED = [
    "posttrain.orchestration.run",
    "posttrain.cli.main",
    "transformers.models.llama.modeling_llama",
    "peft.tuners.lora",
    "pandas",
    "fsspec.core",
]


@dataclass(frozen=True)
class Death:
    """Die by ``signal_number`` at the ``call``-th call of ``target`` (module:name or module:Class.name)."""

    target: str
    call: int = 1
    after: bool = False
    signal_number: int = signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """``code`` is the exit code, or minus the signal that ended the process."""

    code: int
    out: str
    err: str


def command_line(
    arguments: Sequence[object], folder: Path, death: Death | None = None, timeout_s: float = 120
) -> Ended:
    """Run ``posttrain ARGUMENTS`` in a process of its own and wait for its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / "out.txt", folder / "err.txt"
    process = context.Process(target=_run, args=([str(a) for a in arguments], str(out), str(err), death))
    process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {timeout_s} s: {out.read_text()[-2000:]}{err.read_text()[-2000:]}")
    return Ended(process.exitcode, out.read_text(), err.read_text())


def _run(arguments: list[str], out: str, err: str, death: Death | None) -> None:
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if death is not None:
        _plant(death)
    from posttrain.cli.main import run_command

    code = run_command(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _plant(death: Death) -> None:
    module, _, path = death.target.partition(":")
    owner: Any = importlib.import_module(module)
    *holders, name = path.split(".")
    for holder in holders:
        owner = getattr(owner, holder)
    original = getattr(owner, name)
    calls = 0

    def dies(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == death.call and not death.after:
            os.kill(os.getpid(), death.signal_number)
        result = original(*arguments, **keywords)
        if calls == death.call and death.after:
            os.kill(os.getpid(), death.signal_number)
        return result

    setattr(owner, name, dies)

"""The near end: sides as processes, and measurements that take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psutil

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent

Facts = dict[str, Any]


def offline_environment(threads: int) -> dict[str, str]:
    """Environment of every side: threads pinned, nothing asked of a hub, nothing reported."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "1000",
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(ROOT / ".cache" / "huggingface"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(HERE),
        "PYTHONUNBUFFERED": "1",
    }


class Side:
    """One contestant in a process of its own, so that memory, threads and allocator are its own too."""

    def __init__(
        self,
        script: str,
        spec: Mapping[str, Any],
        *,
        threads: int,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``sides/SCRIPT.py`` and wait until it has loaded."""
        self.script = script
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the side)
        self._process = subprocess.Popen(
            [python, str(HERE / "sides" / f"{script}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**offline_environment(threads), **(environment or {})},
            cwd=ROOT,
        )
        try:
            self.peak_bytes = int(self._ask({**spec, "threads": threads})["peak_bytes"])
        except BaseException:
            self.close()
            raise

    def do(self, action: str, **arguments: Any) -> Facts:
        """Measure one action: the side's own facts, and how busy the machine was with other things meanwhile."""
        load, busy, own, started = os.getloadavg()[0], _busy_seconds(), self._cpu_seconds(), time.perf_counter()
        facts = self._ask({"do": action, **arguments})
        wall = time.perf_counter() - started
        others = (_busy_seconds() - busy) - (self._cpu_seconds() - own)
        self.peak_bytes = max(self.peak_bytes, int(facts["peak_bytes"]))
        return {**facts, "load_before": round(load, 2), "other_cores_busy": round(max(0.0, others / wall), 2)}

    def _ask(self, message: Mapping[str, Any]) -> Facts:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            tail = "".join(self._log.readlines()[-20:])
            raise RuntimeError(f"{self.script} ended with code {self._process.wait()}:\n{tail}")
        return json.loads(line)

    def _cpu_seconds(self) -> float:
        process = psutil.Process(self._process.pid)
        total = 0.0
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        return total

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sides(AbstractContextManager["Sides"]):
    """The contestants of a benchmark, all with the same work and threads; they end together."""

    def __init__(self, spec: Mapping[str, Any], threads: int) -> None:
        self._spec, self._threads, self._stack = spec, threads, ExitStack()

    def start(
        self, script: str, *, python: str = "", environment: Mapping[str, str] | None = None, **more: Any
    ) -> Side:
        """Start ``sides/SCRIPT.py`` with ``more`` added to the work; ``python`` is a rival's interpreter."""
        print(f"loading {script}", flush=True)
        side = Side(
            script,
            {**self._spec, **more},
            threads=self._threads,
            python=python or sys.executable,
            environment=environment,
        )
        return self._stack.enter_context(side)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def take_turns(runs: Mapping[str, Callable[[int], Facts]], repeats: int) -> dict[str, list[Facts]]:
    """Measure every run once per repeat, one after the other, starting with another one each time.

    A slow phase of the machine so meets all of them, and the ratio within a repeat stays fair. One round before
    counts for nothing.
    """
    names = list(runs)
    found: dict[str, list[Facts]] = {name: [] for name in names}
    for repeat in range(-1, repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            facts = runs[name](repeat)
            if repeat >= 0:
                found[name].append(facts)
            print(
                f"  {'warm-up' if repeat < 0 else f'repeat {repeat + 1}'}: {name} {facts['seconds']:.2f} s", flush=True
            )
    return found


def rates(facts: Sequence[Facts]) -> list[float]:
    """Tokens per second of each repeat."""
    return [f["tokens"] / f["seconds"] for f in facts]

"""A process that runs one Python function and can be killed: how graders that may hang or crash are called."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError

_START_LIMIT_S = 120.0
_MAX_LOG_BYTES = 1 << 20


class CallTimeoutError(PosttrainError):
    """The call did not answer in time; its process was killed."""


class ProcessLostError(PosttrainError):
    """The process ended during the call."""


class CallRaisedError(PosttrainError):
    """The called function raised, or could not be loaded (``loading``)."""

    def __init__(self, text: str, loading: bool) -> None:
        self.loading = loading
        super().__init__(text)


class CallProcess:
    """Calls ``target`` in a process of its own, started on first use and again after each loss.

    ``target`` is ``package.module:function`` or ``path/file.py:function``. Arguments and results travel as
    JSON. The process has its own session: Ctrl-C does not reach it, and killing it kills its children.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - lives as long as this object
        self._loaded = False

    def describe(self, timeout_s: float = _START_LIMIT_S) -> list[dict[str, Any]]:
        """Parameters of the function: name, kind (of ``inspect.Parameter``), required."""
        return self._request({"do": "describe", "arguments": {}}, timeout_s)

    def call(self, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Result of ``target(**arguments)``.

        Importing the function's module is not counted into ``timeout_s``. Raises CallTimeoutError,
        ProcessLostError or CallRaisedError; after the first two the next call starts a new process.
        """
        if not self._loaded:
            self.describe()
        return self._request({"do": "call", "arguments": arguments}, timeout_s)

    def close(self) -> None:
        """Kill the process and everything it started. May be called again."""
        process, self._process, self._loaded = self._process, None, False
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _request(self, request: dict[str, Any], timeout_s: float) -> Any:
        line = json.dumps({**request, "target": self.target, "limit_s": timeout_s}).encode() + b"\n"
        deadline = time.monotonic() + timeout_s
        process = self._process or self._start()
        try:
            self._write(process, line, deadline)
            reply = json.loads(self._read_line(process, deadline))
        except (CallTimeoutError, KeyboardInterrupt):
            self.close()
            raise
        except (OSError, ValueError, ProcessLostError) as error:
            reason = self._last_words(process)
            self.close()
            raise ProcessLostError(reason) from error
        self._loaded = True
        if os.fstat(self._log.fileno()).st_size > _MAX_LOG_BYTES:
            self._log.truncate(0)
        if "error" in reply:
            loading = reply.get("kind") == "load"
            self._loaded = not loading
            raise CallRaisedError(str(reply["error"]), loading)
        return reply["value"]

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.truncate(0)
        process = subprocess.Popen(
            [sys.executable, "-B", "-P", str(Path(__file__).with_name("worker_main.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            # Set order follows string hashes: generated tasks must be the same in every process.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process
        self.starts += 1
        here = os.getcwd()
        path = [entry or here for entry in sys.path]
        self._write(process, json.dumps({"path": [*path, here]}).encode() + b"\n", time.monotonic() + _START_LIMIT_S)
        return process

    def _write(self, process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert process.stdin is not None
        rest = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while rest:
                self._wait(selector, process, deadline)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(process.stdin.fileno(), rest[: 1 << 16]) :]

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        chunks: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not (chunks and chunks[-1].endswith(b"\n")):
                self._wait(selector, process, deadline)
                with contextlib.suppress(BlockingIOError):
                    chunk = os.read(process.stdout.fileno(), 1 << 16)
                    if not chunk:
                        raise ProcessLostError("closed its output")
                    chunks.append(chunk)
        return b"".join(chunks)

    def _wait(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Until a pipe is ready. A dead process whose child still holds the pipe is noticed by polling."""
        while not selector.select(timeout=min(0.2, max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= deadline:
                raise CallTimeoutError("no answer in time")
            if process.poll() is not None:
                raise ProcessLostError("ended")

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        try:
            code = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        how = "broke the exchange" if code is None else f"ended with {_name(code)}"
        self._log.seek(max(os.fstat(self._log.fileno()).st_size - 2000, 0))
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the grading process {how}" + (f": {lines[-1].strip()[:300]}" if lines else "")


def _name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"

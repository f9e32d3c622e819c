"""``engine.jsonl``: what engine, trainer and machine did, once a second.

The sampler looks at a run from outside. Nothing it meets may disturb the run, and nothing it misses may look like
a zero: a source that raises leaves its fields ``null`` and is counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import psutil

from posttrain.rundir.files import DamagedFileError, strict_json

_R = TypeVar("_R")

_SHORTEST_WINDOW_S = 0.1
"""Rates over less say nothing: a process's time is counted in ticks of 10 ms."""


class EngineCounters(Protocol):
    """What an engine tells about itself; token counts run since its start, the rest is now."""

    @property
    def running(self) -> int:
        """Requests that are decoded."""
        ...

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        ...

    @property
    def preempted(self) -> int:
        """Times a running request was put back, since start."""
        ...

    @property
    def kv_bytes_used(self) -> int:
        """Memory that the keys and values of running requests take."""
        ...

    @property
    def kv_bytes_allocated(self) -> int:
        """Memory held for keys and values, used or not."""
        ...

    @property
    def kv_bytes_limit(self) -> int:
        """Memory they may hold."""
        ...

    @property
    def generated_tokens(self) -> int:
        """Tokens sampled since start."""
        ...

    @property
    def policy_version(self) -> int:
        """Version of the weights held."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """An accelerator now: bytes allocated, and the share of time it computes (0 to 1) where known."""

    memory: int
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One line. Rates are over the time since the line before; ``None`` means not known.

    ``time`` in seconds since the epoch; ``cpu_share`` is this process's use of all cores it may run on (0 to 1);
    ``memory`` is its resident memory and ``device_memory`` what it allocated on the accelerator, in bytes;
    ``phase`` is what the run was doing.
    """

    time: float
    attempt: int
    phase: str = ""
    generated_tokens_per_second: float | None = None
    trained_tokens_per_second: float | None = None
    running: int | None = None
    waiting: int | None = None
    preempted: int | None = None
    kv_bytes_used: int | None = None
    kv_bytes_allocated: int | None = None
    kv_bytes_limit: int | None = None
    policy_version: int | None = None
    cpu_share: float | None = None
    memory: int | None = None
    device_memory: int | None = None
    device_utilisation: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counters at one moment of the monotonic clock."""

    time: float
    generated: int | None
    trained: int | None
    cpu_seconds: float | None


class EngineSampler:
    """A thread that appends one sample per interval until it is stopped.

    ``stats`` gives the engine's counters and ``trained_tokens`` the tokens trained since start; both are called
    from the sampler's thread and must only read. ``phase`` names what the run is doing, ``device`` reads the
    accelerator. ``failures`` counts samples with a problem, ``problem`` is the newest one.
    """

    def __init__(
        self,
        path: Path,
        attempt: int,
        stats: Callable[[], EngineCounters],
        *,
        trained_tokens: Callable[[], int] | None = None,
        phase: Callable[[], str] | None = None,
        device: Callable[[], DeviceUse] | None = None,
        interval_s: float = 1.0,
    ) -> None:
        self.failures = 0
        self.problem = ""
        self._path, self._attempt, self._interval_s = path, attempt, interval_s
        self._stats, self._trained_tokens, self._phase, self._device = stats, trained_tokens, phase, device
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-sampler", daemon=True)
        self._last = _Totals(time.monotonic(), None, None, None)

    def start(self) -> EngineSampler:
        """Begin sampling. Returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def __enter__(self) -> EngineSampler:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(self._interval_s)
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(strict_json(asdict(self._sample())) + "\n")
            except Exception as error:  # the run goes on whatever happens to its observer
                self._note(f"{type(error).__name__}: {error}")

    def _note(self, problem: str) -> None:
        self.failures += 1
        self.problem = problem

    def _sample(self) -> EngineSample:
        problems: list[str] = []

        def ask(name: str, source: Callable[[], _R] | None) -> _R | None:
            try:
                return source() if source is not None else None
            except Exception as error:
                problems.append(f"{name}: {type(error).__name__}: {error}")
                return None

        now = time.monotonic()
        engine = ask("engine", self._stats)
        totals = _Totals(
            now,
            None if engine is None else engine.generated_tokens,
            ask("training", self._trained_tokens),
            ask("cpu", lambda: _cpu_seconds(self._process)),
        )
        device = ask("device", self._device)
        before, is_long_enough = self._last, now - self._last.time >= _SHORTEST_WINDOW_S
        elapsed = now - before.time if is_long_enough else 0.0
        cpu = _rate(totals.cpu_seconds, before.cpu_seconds, elapsed)
        sample = EngineSample(
            time=round(time.time(), 3),
            attempt=self._attempt,
            phase=ask("phase", self._phase) or "",
            generated_tokens_per_second=_rate(totals.generated, before.generated, elapsed),
            trained_tokens_per_second=_rate(totals.trained, before.trained, elapsed),
            running=None if engine is None else engine.running,
            waiting=None if engine is None else engine.waiting,
            preempted=None if engine is None else engine.preempted,
            kv_bytes_used=None if engine is None else engine.kv_bytes_used,
            kv_bytes_allocated=None if engine is None else engine.kv_bytes_allocated,
            kv_bytes_limit=None if engine is None else engine.kv_bytes_limit,
            policy_version=None if engine is None else engine.policy_version,
            cpu_share=None if cpu is None else round(cpu / _cores(self._process), 4),
            memory=ask("memory", lambda: int(self._process.memory_info().rss)),
            device_memory=None if device is None else device.memory,
            device_utilisation=None if device is None else device.utilisation,
            problem="; ".join(problems),
        )
        if problems:
            self._note(sample.problem)
        if is_long_enough or before.cpu_seconds is None:
            self._last = totals
        return sample


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """All samples of a run in order of time, and what could not be read."""

    samples: tuple[EngineSample, ...]
    problems: tuple[str, ...] = ()


def read_engine(path: Path) -> EngineSeries:
    """Read ``engine.jsonl``. Unreadable lines are named. Raises DamagedFileError if the file cannot be read at all."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error.strerror or error})") from error
    known = {f.name for f in fields(EngineSample)}
    samples: list[EngineSample] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = cast("dict[str, Any]", json.loads(line))
            sample = EngineSample(**{name: value for name, value in record.items() if name in known})
            float(sample.time)
            samples.append(sample)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            problems.append(f"{path.name}:{number}: not an engine sample ({type(error).__name__})")
    return EngineSeries(tuple(sorted(samples, key=lambda s: s.time)), tuple(problems))


def _rate(now: float | None, before: float | None, elapsed_s: float) -> float | None:
    if now is None or before is None or elapsed_s <= 0.0:
        return None
    return round((now - before) / elapsed_s, 3)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _cores(process: psutil.Process) -> int:
    try:
        return max(1, len(process.cpu_affinity() or ()))
    except (AttributeError, psutil.Error):
        return psutil.cpu_count() or 1

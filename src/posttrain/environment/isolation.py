"""Run a batch through killable processes; what breaks a batch is found by running its items one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from posttrain.environment.grading import GradingCounts
from posttrain.environment.worker import CallProcess, CallRaisedError, CallTimeoutError, ProcessLostError

Item = TypeVar("Item")

MAX_LOSSES_PER_BATCH = 10
"""Processes lost to one batch before the rest of it is given up: bounds the time to 10 timeouts."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one item: a value, or why there is none.

    ``raised``: the function itself said no; ``timed_out``: it did not answer even alone.
    """

    value: Any = None
    error: str | None = None
    raised: bool = False
    timed_out: bool = False


class WrongResultError(ValueError):
    """The function did not return one value per item."""


class IsolatedFunction(Generic[Item]):
    """A function over batches, in ``workers`` processes.

    ``collate`` turns items into the keyword arguments of one call; the function returns a list with one
    value per item. Calls from several threads take turns.
    """

    def __init__(
        self,
        target: str,
        collate: Callable[[Sequence[Item]], dict[str, Any]],
        timeout_s: float,
        counts: GradingCounts,
        workers: int = 1,
    ) -> None:
        self._collate, self._timeout_s, self._counts = collate, timeout_s, counts
        self._processes = [CallProcess(target) for _ in range(workers)]
        self._lock = threading.Lock()

    @property
    def process(self) -> CallProcess:
        """The first process, for questions about the function."""
        return self._processes[0]

    def run(self, items: Sequence[Item]) -> list[Result]:
        """One result per item, in order. Never raises for what the function does.

        A batch that times out, raises, ends its process or returns a wrong number of values is run again
        item by item in fresh processes where needed, so only the items that break alone have no value.
        """
        with self._lock:
            size = -(-len(items) // len(self._processes))
            shares = [items[i : i + size] for i in range(0, len(items), size)] if items else []
            if len(shares) < 2:
                results = [self._run_share(self._processes[0], share) for share in shares]
            else:
                with ThreadPoolExecutor(len(shares)) as pool:
                    results = list(pool.map(self._run_share, self._processes, shares))
            self._counts.restarts = sum(max(p.starts - 1, 0) for p in self._processes)
        flat = [result for share in results for result in share]
        self._counts.timeouts += sum(r.timed_out for r in flat)
        return flat

    def call(self, items: Sequence[Item]) -> list[Any]:
        """Values of one batch, without isolation. Raises what a call raises, or WrongResultError."""
        return self._call(self._processes[0], items)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()

    def _call(self, process: CallProcess, items: Sequence[Item]) -> list[Any]:
        values = process.call(self._collate(items), self._timeout_s)
        if not isinstance(values, list):
            raise WrongResultError(f"returned {type(values).__name__}, not a list of {len(items)}")
        values = cast(list[Any], values)
        if len(values) != len(items):
            raise WrongResultError(f"returned {len(values)} values for {len(items)} completions")
        return values

    def _run_share(self, process: CallProcess, items: Sequence[Item]) -> list[Result]:
        if len(items) > 1:
            try:
                return [Result(value) for value in self._call(process, items)]
            except (CallTimeoutError, ProcessLostError, CallRaisedError, WrongResultError):
                pass  # some item broke it; which one shows below
        return self._run_alone(process, items)

    def _run_alone(self, process: CallProcess, items: Sequence[Item]) -> list[Result]:
        results: list[Result] = []
        losses = 0
        for item in items:
            if losses >= MAX_LOSSES_PER_BATCH:
                results.append(Result(error=f"not tried: {losses} others of the batch already cost their process"))
                continue
            try:
                results.append(Result(self._call(process, [item])[0]))
            except CallTimeoutError:
                losses += 1
                results.append(Result(error=f"timeout: no answer within {self._timeout_s:g} s", timed_out=True))
            except ProcessLostError as error:
                losses += 1
                results.append(Result(error=str(error)))
            except (CallRaisedError, WrongResultError) as error:
                results.append(Result(error=str(error), raised=True))
        return results

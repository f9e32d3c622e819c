"""Rows of one decoding step computed side by side, each thread from the token to the next one.

Decoding is hundreds of small operators. Splitting each of them over the threads makes the threads meet after every
one, which costs more than the small operators themselves; splitting the rows once makes them meet once a step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import TypeVar

import torch

_T = TypeVar("_T")

ROWS_PER_LANE = 16
"""Fewer rows make a lane's matrix products wait for the weights, which every lane reads for itself."""


class Lanes:
    """Runs work on equal, contiguous parts of the rows, with the threads torch has here shared out among them.

    On an accelerator, with one thread, or with few rows there is one lane: the caller's own thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._splits = device.type == "cpu"
        self._pool: ThreadPoolExecutor | None = None
        self._shape = (0, 0)

    def count(self, rows: int) -> int:
        """Lanes that ``map`` would use for ``rows`` rows."""
        return max(1, min(torch.get_num_threads(), rows // ROWS_PER_LANE)) if self._splits else 1

    def map(self, work: Callable[[int, slice], _T], rows: int) -> list[_T]:
        """``work(lane, part)`` for every part of ``rows`` rows, results in order of the rows.

        All lanes have ended when this returns or raises; it raises what the first lane in order raised.
        """
        lanes = self.count(rows)
        if lanes == 1:
            return [work(0, slice(0, rows))]
        pool = self._pool_of(lanes, torch.get_num_threads())
        edges = [rows * i // lanes for i in range(lanes + 1)]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        futures = [pool.submit(_inference, work, lane, part) for lane, part in enumerate(parts)]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads. A later ``map`` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _pool_of(self, lanes: int, threads: int) -> ThreadPoolExecutor:
        if self._pool is None or self._shape != (lanes, threads):
            self.close()
            started = Barrier(lanes + 1)

            def start() -> None:
                torch.get_num_threads()  # a thread takes the default when it first asks, which must not be later
                torch.set_num_threads(max(1, threads // lanes))
                started.wait()

            self._pool = ThreadPoolExecutor(lanes, "decode-lane", initializer=start)
            for _ in range(lanes):
                self._pool.submit(_nothing)
            started.wait()
            # The setting is each thread's own, but it is also the default of threads that begin later.
            torch.set_num_threads(threads)
            self._shape = (lanes, threads)
        return self._pool


def _inference(work: Callable[[int, slice], _T], lane: int, part: slice) -> _T:
    with torch.inference_mode():  # a setting of each thread
        return work(lane, part)


def _nothing() -> None:
    """Work that only makes a pool start its thread."""

"""Ctrl-C that saves: the first signal asks the loop to stop, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Context manager around the training loop, which looks at ``requested`` between pieces of work.

    The first SIGINT or SIGTERM sets ``requested``; a second one raises KeyboardInterrupt. On leaving, the
    previous handlers are back. ``notify`` is called once from the signal handler with the signal's name: it
    must not take locks or print. Outside the main thread, where Python delivers no signals, it does nothing
    but answer ``requested``.
    """

    def __init__(self, notify: Callable[[str], None] | None = None) -> None:
        self._notify = notify
        self._previous: dict[int, Any] = {}
        self._name = ""

    @property
    def requested(self) -> bool:
        """True once a stop was asked for."""
        return bool(self._name)

    @property
    def signal_name(self) -> str:
        """Name of the signal that asked, or an empty string."""
        return self._name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be set back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._name:
            raise KeyboardInterrupt
        self._name = signal.Signals(number).name
        if self._notify is not None:
            self._notify(self._name)

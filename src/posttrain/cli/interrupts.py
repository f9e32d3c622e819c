"""Ctrl-C outside of the training loop: the first stops a command in order, the second at once, without a trace."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

EXIT_INTERRUPTED = 130
_STDERR = 2


class CtrlC:
    """Handler of SIGINT: raises KeyboardInterrupt at the first, ends the process with 130 at the second.

    Python's own raises wherever the first one's cleaning up has come to, and ends in a stack trace.
    """

    __slots__ = ("_stopping", "told")

    def __init__(self) -> None:
        self._stopping = False
        self.told = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            if not self.told:
                os.write(_STDERR, b"error: interrupted\n")
            os._exit(EXIT_INTERRUPTED)
        self._stopping = True
        raise KeyboardInterrupt


def handle_interrupts() -> None:
    """Install the handler; outside the main thread, where Python delivers no signals, do nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, CtrlC())


def tell_interrupted() -> int:
    """Say in one line, once, that the command was interrupted. Returns the exit code."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, CtrlC):
        handler.told = True
    print("error: interrupted", file=sys.stderr, flush=True)
    return EXIT_INTERRUPTED

"""Ctrl-C outside of the training loop: the first stops a command in order, the second at once; neither leaves a trace."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

EXIT_INTERRUPTED = 130
_STDERR = 2


class AnnouncedInterrupt(KeyboardInterrupt):
    """An interrupt that the user has been told of already."""


def handle_interrupts() -> None:
    """From now on SIGINT says so in one line and raises AnnouncedInterrupt; a second one ends the process with 130.

    Without this a second Ctrl-C raises wherever the first one's cleaning up has come to, and ends in a stack trace.
    Outside the main thread, where Python delivers no signals, it does nothing.
    """
    announced = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal announced
        if announced:
            os._exit(EXIT_INTERRUPTED)
        announced = True
        os.write(_STDERR, b"error: interrupted\n")
        raise AnnouncedInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)

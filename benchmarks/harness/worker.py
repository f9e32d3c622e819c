"""The far end of a side: a process that loads once and then measures on command.

Standard library only, so that it runs in the interpreter of any rival. Commands come as lines of JSON on standard
input; answers leave on what was standard output, while everything the libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Action = Callable[[dict[str, Any]], dict[str, Any]]


class Channel:
    """Commands in, answers out. ``spec`` is what the side was started with."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.spec: dict[str, Any] = json.loads(sys.stdin.readline())

    def next(self) -> dict[str, Any] | None:
        """The next command, or ``None`` when there will be no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def reply(self, answer: dict[str, Any]) -> None:
        """Send an answer; the process' peak memory goes with it."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._out.write(json.dumps({**answer, "peak_bytes": peak}) + "\n")
        self._out.flush()


def serve(load: Callable[[dict[str, Any]], Mapping[str, Action]]) -> None:
    """Load, then answer commands ``{"do": action, ...}`` with the action's facts and its wall-clock ``seconds``."""
    channel = Channel()
    actions = load(channel.spec)
    channel.reply({})
    while (command := channel.next()) is not None:
        started = time.perf_counter()
        facts = actions[command["do"]](command)
        channel.reply({"seconds": time.perf_counter() - started, **facts})

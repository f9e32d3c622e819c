"""Reads the logs of a run, whoever wrote them, into a history. Nothing in a log is ever executed or unpickled."""

from __future__ import annotations

import os
from pathlib import Path

from posttrain.faultmap.history import History
from posttrain.faultmap.readers.files import read_file
from posttrain.faultmap.readers.folder import read_folder
from posttrain.faultmap.readers.source import Limits
from posttrain.signals.framework import Framework

__all__ = ["read_history"]


def read_history(path: Path, framework: Framework | None = None, *, limits: Limits | None = None) -> History:
    """The history in a log file, a run directory or a folder with logs.

    The format is told by content, the framework by the keys unless given. What is damaged, duplicated or unknown goes
    into ``problems``, ``notes`` and ``unmapped``. Raises InputError where nothing can be read at all.
    """
    if os.path.isdir(path):
        return read_folder(path, framework, limits)
    return read_file(path, framework, limits)

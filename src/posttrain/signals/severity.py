"""How much a finding matters. The order is that of ``--fail-on``."""

from __future__ import annotations

from enum import IntEnum


class Severity(IntEnum):
    """``info`` is worth knowing, ``warn`` worth acting on, ``critical`` means the run is losing or lost."""

    INFO = 1
    WARN = 2
    CRITICAL = 3

    def __str__(self) -> str:
        return self.name.lower()

"""The doctor: read a log and ask the detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from posttrain.faultmap.diagnosis import Diagnosis, diagnose
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.readers import read_history
from posttrain.signals.framework import Framework

FailOn = Literal["info", "warn", "critical", "off"]
EXAMPLE = Path(__file__).with_name("example")
"""The run that ``posttrain doctor --example`` looks at."""
FOUND, BROKEN = 1, 3


def examine(path: Path, framework: Framework | None = None) -> Diagnosis:
    """Read a log and diagnose it. Raises InputError where it cannot be read at all."""
    return diagnose(read_history(path, framework))


def exit_code(diagnosis: Diagnosis, fail_on: FailOn) -> int:
    """1 for a finding at or above ``fail_on``; else 3 where a detector failed, for then nobody looked; else 0."""
    severity = diagnosis.severity
    if fail_on != "off" and severity is not None and severity >= Severity[fail_on.upper()]:
        return FOUND
    return BROKEN if diagnosis.failures else 0

"""The history of a run that is still going on, grown value by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from posttrain.faultmap.history import Course, Facts, History, Samples, Steps, Values
from posttrain.faultmap.readers.derive import derive
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.signals.framework import Framework

_FIRST_CAPACITY = 64


@dataclass(slots=True)
class LiveHistory:
    """Takes values as they are measured; ``history`` costs no copy of the past.

    Values of a step may come in several pieces (training, then evaluation); the last of a signal counts. Raises
    ValueError for a step before one already seen: what a resumed run does again is not part of its history.
    """

    source: str
    facts: Facts
    samples: Samples | None = None
    _columns: dict[str, _Column] = field(default_factory=dict[str, "_Column"])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column()
            column.add(step, value)

    def history(self) -> History:
        """Everything so far. It stays as it is while more is added, but for the newest step."""
        courses = {name: column.course(name) for name, column in self._columns.items()}
        whole = derive(courses, Framework.POSTTRAIN, Remarks())
        return History(Framework.POSTTRAIN, self.source, MappingProxyType(whole), self.facts, self.samples)


@dataclass(slots=True)
class _Column:
    steps: Steps = field(default_factory=lambda: np.empty(_FIRST_CAPACITY, np.int64))
    values: Values = field(default_factory=lambda: np.empty(_FIRST_CAPACITY, np.float64))
    length: int = 0

    def add(self, step: int, value: float) -> None:
        last = int(self.steps[self.length - 1]) if self.length else -1
        if step < last:
            raise ValueError(f"step {step} comes after step {last}")
        if step == last:
            self.values[self.length - 1] = value
            return
        if self.length == len(self.steps):
            self.steps, self.values = np.resize(self.steps, 2 * self.length), np.resize(self.values, 2 * self.length)
        self.steps[self.length], self.values[self.length] = step, value
        self.length += 1

    def course(self, name: str) -> Course:
        return Course(name, self.steps[: self.length], self.values[: self.length])

"""Synthetic histories for tests of detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.faultmap.history import Course, Facts, History, Sample, Samples
from posttrain.signals.framework import Framework


def history(
    courses: Mapping[str, Sequence[float] | npt.NDArray[np.float64]],
    *,
    first: int = 1,
    every: int = 1,
    facts: Facts | None = None,
    samples: Samples | None = None,
    framework: Framework = Framework.POSTTRAIN,
) -> History:
    """Each course starts at step ``first`` and has a value every ``every`` steps; NaN means nothing was logged."""
    made: dict[str, Course] = {}
    for name, given in courses.items():
        values = np.asarray(given, np.float64)
        steps = first + every * np.arange(len(values), dtype=np.int64)
        logged = ~np.isnan(values)
        made[name] = Course(name, steps[logged], values[logged])
    return History(framework, "synthetic", made, facts or Facts(), samples)


@dataclass(frozen=True)
class GivenSamples:
    """Samples held in memory."""

    by_step: Mapping[int, Sequence[Sample]]

    def steps(self) -> Sequence[int]:
        return sorted(self.by_step)

    def read(self, step: int) -> Sequence[Sample]:
        return self.by_step.get(step, ())

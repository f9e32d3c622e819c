"""What ``evaluation/summary.json`` says in words and differences; a malformed part is left out and named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from posttrain.faultmap.scales import format_number


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GainSummary:
    """The paired gain of one environment: differences by name, and sentences for people."""

    differences: Mapping[str, Interval]
    sentences: tuple[str, ...]


def summary_of(summary: Mapping[str, Any] | None, environment: str) -> GainSummary:
    """Gain and sentences of one environment; empty where the run was not evaluated twice yet."""
    entry = as_mapping(as_mapping(as_mapping(summary).get("environments")).get(environment))
    differences = {name: found for name, row in as_mapping(entry.get("gain")).items() if (found := _interval(row))}
    sentences = [as_mapping(entry.get(part)).get("sentence") for part in ("verdict", "cost")]
    texts = [text for text in sentences if isinstance(text, str) and text]
    parts = _decomposition(as_mapping(entry.get("decomposition")))
    constant = number(entry.get("constant_answer_success"))
    if constant is not None:
        parts.append(f"Always giving the best constant answer earns {format_number(constant, 'share')}.")
    return GainSummary(differences, (*texts, *([" ".join(parts)] if parts else [])))


def as_mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _decomposition(row: Mapping[str, Any]) -> list[str]:
    names = ("correctness", "format", "termination")
    values = {name: number(row.get(name)) for name in names}
    known = [
        f"{100 * value:+.0f} points {name}"
        for name, value in values.items()
        if value is not None and (name != "format" or row.get("format_known") is not False)
    ]
    return [f"Where the gain comes from: {', '.join(known)}."] if known else []


def _interval(row: object) -> Interval | None:
    values = [number(as_mapping(row).get(key)) for key in ("value", "low", "high")]
    if any(v is None for v in values):
        return None
    return Interval(*cast("list[float]", values))

"""Numbers for people and for axes: formatting, round ticks, scales, thinning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def format_number(value: float | None, unit: str = "") -> str:
    """Three significant digits, thousands as k/M/G; ``share`` as percent; ``None`` as a dash."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if unit == "share":
        return f"{_short(100 * value)} %"
    magnitude = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if magnitude >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{_short(value / scale)}{suffix}"
    return _short(value)


def percent(value: float | None) -> str:
    """A share in whole per cent, or with one digit near the ends."""
    if value is None or not math.isfinite(value):
        return "–"
    shown = 100 * value
    return f"{shown:.1f} %" if 0 < shown < 9.95 or 99 < shown < 100 else f"{shown:.0f} %"


def nice_ticks(low: float, high: float, at_least: int = 3) -> list[float]:
    """Round positions inside [low, high], as few as possible but at least ``at_least``.

    Their distance is 1, 2, 2.5 or 5 times a power of ten.
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10(high - low))
    for multiple in (5.0, 2.5, 2.0, 1.0, 0.5, 0.25, 0.2, 0.1):
        step = multiple * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 >= at_least:
            break
    return [float(f"{i * step:.15g}") for i in range(first, last + 1)]


def thin(x: Sequence[float], y: Sequence[float | None], limit: int = 240) -> tuple[list[float], list[float | None]]:
    """At most ``limit`` points: the mean of equal slices of the sequence (``None`` where a slice has no value)."""
    if len(x) <= limit:
        return list(x), list(y)
    edges = [round(i * len(x) / limit) for i in range(limit + 1)]
    thin_x: list[float] = []
    thin_y: list[float | None] = []
    for start, end in pairwise(edges):
        values = finite(y[start:end])
        thin_x.append(sum(x[start:end]) / (end - start))
        thin_y.append(sum(values) / len(values) if values else None)
    return thin_x, thin_y


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of values as one line of bars, lowest to highest; values that are not finite are left out."""
    _, means = thin([0.0] * len(values), list(values), width)
    known = finite(means)
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(_BARS[min(7, int(8 * (v - low) / span))] if span else _BARS[3] for v in known)


def scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    """Map [low, high] to [start, end], by logarithm if ``log`` (then ``low`` must be positive)."""
    if log:
        a, b = math.log10(low), math.log10(high)
        return lambda v: start + (end - start) * (math.log10(max(v, low * 1e-3)) - a) / ((b - a) or 1.0)
    return lambda v: start + (end - start) * (v - low) / (high - low)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose [low, high], at most about six; always two or more."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / 5))
    return [10.0**e for e in range(first, last + 1, stride)] if last > first else [10.0**first, 10.0 ** (first + 1)]


def log_ticks_inside(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten inside [low, high]; powers of ten alone where that is too many."""
    candidates = [
        m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    ]
    inside = [c for c in candidates if low <= c <= high]
    return inside if len(inside) <= 7 else [c for c in inside if f"{c:e}".startswith("1")] or inside[:7]


def finite(values: Sequence[float | None]) -> list[float]:
    """The values that are numbers."""
    return [v for v in values if v is not None and math.isfinite(v)]


def _short(value: float) -> str:
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    text = f"{value:.0f}" if magnitude >= 100 else f"{value:.3g}"
    return text.rstrip("0").rstrip(".") if "." in text else text

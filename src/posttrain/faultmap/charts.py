"""Small charts as inline SVG: axes, grid, legend, uncertainty bands, gaps and marks for what is not a number.

A chart is data (`Chart`, `Heatmap`); `draw` turns it into markup plus the rows that the page's script shows
on hover. Colours are CSS classes, so one drawing serves the light and the dark page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from posttrain.faultmap.markup import Html, join, tag
from posttrain.faultmap.scales import finite, format_number, log_ticks, log_ticks_inside, nice_ticks, scale

WIDTH = 430.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 30.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``y`` holds ``None`` where nothing was measured; ``low``/``high`` draw a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    tone: int = 1
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dashed: bool = False
    markers: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a common x axis.

    ``unit`` "share" shows percent. ``floor``/``ceiling`` extend the y axis to at least these values.
    ``x_names`` name the whole x positions 0, 1, 2... ``healthy`` shades a range. ``lost`` are x positions
    where a value was NaN or infinite.
    """

    title: str
    series: Sequence[Series]
    unit: str = ""
    x_label: str = "step"
    floor: float | None = None
    ceiling: float | None = None
    x_range: tuple[float, float] | None = None
    x_log: bool = False
    y_log: bool = False
    healthy: tuple[float | None, float | None] | None = None
    lost: Sequence[float] = ()
    note: str = ""
    height: float = 190.0
    width: float = WIDTH
    left: float = LEFT
    x_names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Shares in columns (x) by rows (first row at the bottom); ``values[column][row]`` in 0..1."""

    title: str
    x: Sequence[float]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    x_label: str = "step"
    tone: int = 1
    unit: str = ""
    note: str = ""
    height: float = 190.0


class HoverSeries(TypedDict):
    """One line of a hover box: name, colour class number, value of each x as text."""

    name: str
    tone: int
    values: list[str]


class Hover(TypedDict):
    """What the page shows when the pointer is at one of the x positions (in drawing units)."""

    x: list[float]
    labels: list[str]
    series: list[HoverSeries]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart as markup, and its hover rows."""

    markup: Html
    hover: Hover


def draw(chart: Chart, identifier: str) -> Drawing:
    """Draw lines. An empty chart says that nothing was measured instead of showing an empty frame."""
    points = [v for s in chart.series for v in finite((*s.y, *(s.low or ()), *(s.high or ())))]
    xs = sorted({x for s in chart.series for x in s.x})
    if not points or not xs:
        lost = f"All {len(chart.lost)} values were not finite." if chart.lost else "Nothing was recorded."
        return Drawing(_figure(chart, identifier, tag("p", lost, class_="empty")), Hover(x=[], labels=[], series=[]))
    frame = _frame(chart, points, xs)
    body = [_grid(chart, frame), _healthy(chart, frame)]
    body += [_band(s, frame) for s in chart.series]
    body += [_line(s, frame) for s in reversed(chart.series)]
    body.append(_lost_marks(chart, frame))
    svg = _svg(chart.width, chart.height, body, chart.title)
    return Drawing(_figure(chart, identifier, svg), _hover(chart, frame, xs))


def draw_heatmap(chart: Heatmap, identifier: str) -> Drawing:
    """Draw shares as cells whose opacity is the share."""
    lines = Chart(chart.title, (), chart.unit, x_label=chart.x_label, note=chart.note, height=chart.height)
    if not chart.x:
        empty = tag("p", "Nothing was recorded.", class_="empty")
        return Drawing(_figure(lines, identifier, empty), Hover(x=[], labels=[], series=[]))
    bottom = chart.height - BOTTOM
    column = (WIDTH - LEFT - RIGHT) / len(chart.x)
    row = (bottom - TOP) / len(chart.rows)
    centres = [LEFT + (i + 0.5) * column for i in range(len(chart.x))]
    body = [
        tag("rect", x=_px(LEFT), y=_px(TOP), width=_px(WIDTH - LEFT - RIGHT), height=_px(bottom - TOP), class_="frame")
    ]
    for i, shares in enumerate(chart.values):
        for j, share in enumerate(shares):
            if share > 0:
                place = {"x": _px(LEFT + i * column), "y": _px(bottom - (j + 1) * row)}
                size = {"width": _px(max(column - 0.6, 0.6)), "height": _px(row - 1)}
                opacity = f"{0.08 + 0.92 * min(share, 1):.3f}"
                body.append(tag("rect", **place, **size, class_=f"cell t{chart.tone}", fill_opacity=opacity))
    body += [
        tag("text", name, x=_px(LEFT - 6), y=_px(bottom - (j + 0.5) * row + 3.5), class_="tick end")
        for j, name in enumerate(chart.rows)
    ]
    stride = max(1, math.ceil(len(chart.x) / 8))
    body += [_x_text(centres[i], bottom, format_number(chart.x[i])) for i in range(0, len(chart.x), stride)]
    body.append(
        tag("text", chart.x_label, x=_px((LEFT + WIDTH - RIGHT) / 2), y=_px(chart.height - 3), class_="axis mid")
    )
    rows = [
        HoverSeries(name=name, tone=chart.tone, values=[format_number(v[j], "share") for v in chart.values])
        for j, name in reversed(list(enumerate(chart.rows)))
    ]
    hover = Hover(x=[round(c, 1) for c in centres], labels=[_x_label(chart.x_label, x) for x in chart.x], series=rows)
    return Drawing(_figure(lines, identifier, _svg(WIDTH, chart.height, body, chart.title)), hover)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where data values lie in the drawing."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    x_ticks: list[float]
    y_ticks: list[float]
    bottom: float
    low: float
    high: float


def _frame(chart: Chart, points: list[float], xs: list[float]) -> _Frame:
    low, high = min(points), max(points)
    low = min(low, chart.floor) if chart.floor is not None else low
    high = max(high, chart.ceiling) if chart.ceiling is not None else high
    y_log = chart.y_log and min(points) > 0
    if y_log:
        low = min(points) if chart.floor is None or chart.floor <= 0 else low
        y_ticks = log_ticks(low, high)
        low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])
    else:
        low, high = _padded(low, high, chart.floor, chart.ceiling)
        y_ticks = nice_ticks(low, high)
    x_low, x_high = chart.x_range or (xs[0], xs[-1])
    x_log = chart.x_log and x_low > 0
    if x_high <= x_low:
        x_low, x_high = (x_low / 2, x_low * 2) if x_log else (x_low - 0.5, x_low + 0.5)
    if chart.x_names:
        x_low, x_high = -0.4, len(chart.x_names) - 0.6
        x_ticks = [float(i) for i in range(len(chart.x_names))]
    else:
        x_ticks = log_ticks_inside(x_low, x_high) if x_log else _whole_ticks(x_low, x_high, chart.x_label)
    bottom = chart.height - BOTTOM
    to_x = scale(x_low, x_high, chart.left, chart.width - RIGHT, x_log)
    return _Frame(to_x, scale(low, high, bottom, TOP, y_log), x_ticks, y_ticks, bottom, low, high)


def _padded(low: float, high: float, floor: float | None, ceiling: float | None) -> tuple[float, float]:
    span = high - low or abs(high) or 1.0
    low = low if floor is not None and low == floor else low - 0.06 * span
    high = high if ceiling is not None and high == ceiling else high + 0.08 * span
    return low, high


def _whole_ticks(low: float, high: float, label: str) -> list[float]:
    ticks = nice_ticks(low, high, 4)
    return [t for t in ticks if label != "step" or float(t).is_integer()] or [round(low)]


def _grid(chart: Chart, frame: _Frame) -> Html:
    right = chart.width - RIGHT
    parts: list[Html] = []
    for value in frame.y_ticks:
        y = frame.y(value)
        parts.append(tag("line", x1=_px(chart.left), x2=_px(right), y1=_px(y), y2=_px(y), class_="grid"))
        parts.append(
            tag("text", format_number(value, chart.unit), x=_px(chart.left - 6), y=_px(y + 3.5), class_="tick end")
        )
    parts += [_x_text(frame.x(value), frame.bottom, _x_name(chart, value)) for value in frame.x_ticks]
    parts.append(
        tag("line", x1=_px(chart.left), x2=_px(right), y1=_px(frame.bottom), y2=_px(frame.bottom), class_="base")
    )
    if chart.x_label:
        parts.append(
            tag("text", chart.x_label, x=_px((chart.left + right) / 2), y=_px(chart.height - 3), class_="axis mid")
        )
    return join(parts)


def _x_text(x: float, bottom: float, text: str) -> Html:
    return join(
        (
            tag("line", x1=_px(x), x2=_px(x), y1=_px(bottom), y2=_px(bottom + 3), class_="base"),
            tag("text", text, x=_px(x), y=_px(bottom + 13), class_="tick mid"),
        )
    )


def _healthy(chart: Chart, frame: _Frame) -> Html:
    if chart.healthy is None:
        return Html()
    low = frame.low if chart.healthy[0] is None else max(chart.healthy[0], frame.low)
    high = frame.high if chart.healthy[1] is None else min(chart.healthy[1], frame.high)
    if high <= low:
        return Html()
    top, bottom = frame.y(high), frame.y(low)
    return tag(
        "rect",
        x=_px(chart.left),
        y=_px(top),
        width=_px(chart.width - chart.left - RIGHT),
        height=_px(bottom - top),
        class_="healthy",
    )


def _band(series: Series, frame: _Frame) -> Html:
    if series.low is None or series.high is None:
        return Html()
    corners = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    if not corners:
        return Html()
    upper = [f"{_px(frame.x(x))} {_px(frame.y(high))}" for x, _, high in corners]
    lower = [f"{_px(frame.x(x))} {_px(frame.y(low))}" for x, low, _ in reversed(corners)]
    return tag("path", d=f"M{'L'.join(upper + lower)}Z", class_=f"band t{series.tone}")


def _line(series: Series, frame: _Frame) -> Html:
    path: list[str] = []
    dots: list[Html] = []
    pen_down = False
    runs: list[int] = []
    for x, y in zip(series.x, series.y, strict=True):
        if y is None or not math.isfinite(y):
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{_px(frame.x(x))} {_px(frame.y(y))}")
        runs.append(1) if not pen_down else runs.__setitem__(-1, runs[-1] + 1)
        pen_down = True
    if series.markers or 1 in runs:
        dots = [
            tag("circle", cx=_px(frame.x(x)), cy=_px(frame.y(y)), r="2.4", class_=f"dot t{series.tone}")
            for x, y in zip(series.x, series.y, strict=True)
            if y is not None and math.isfinite(y)
        ]
    dashed = " dashed" if series.dashed else ""
    return join((tag("path", d="".join(path), class_=f"line t{series.tone}{dashed}"), *dots))


def _lost_marks(chart: Chart, frame: _Frame) -> Html:
    return join(tag("text", "×", x=_px(frame.x(x)), y=_px(frame.bottom - 3), class_="lost mid") for x in chart.lost)


def _hover(chart: Chart, frame: _Frame, xs: list[float]) -> Hover:
    rows: list[HoverSeries] = []
    for series in chart.series:
        at: dict[float, str] = {}
        for i, x in enumerate(series.x):
            text = format_number(series.y[i], chart.unit)
            if series.low is not None and series.high is not None and series.low[i] is not None:
                text += f"  [{format_number(series.low[i], chart.unit)}, {format_number(series.high[i], chart.unit)}]"
            at[x] = text
        rows.append(HoverSeries(name=series.name, tone=series.tone, values=[at.get(x, "") for x in xs]))
    lost = set(chart.lost)
    if lost:
        values = ["not finite" if x in lost else "" for x in xs]
        rows.append(HoverSeries(name="value", tone=8, values=values))
    labels = [_x_name(chart, x) if chart.x_names else _x_label(chart.x_label, x) for x in xs]
    return Hover(x=[round(frame.x(x), 1) for x in xs], labels=labels, series=rows)


def _figure(chart: Chart, identifier: str, body: Html) -> Html:
    keys = [
        tag("span", tag("i", class_=f"key t{s.tone}{' dashed' if s.dashed else ''}"), s.name, class_="legend")
        for s in chart.series
        if len(chart.series) > 1 or s.name != chart.title
    ]
    unit = tag("span", chart.unit, class_="unit") if chart.unit not in ("", "share") else None
    caption = tag("figcaption", tag("b", chart.title), unit, tag("span", *keys, class_="legends") if keys else None)
    note = tag("p", chart.note, class_="note") if chart.note else None
    return tag("figure", caption, body, note, class_="chart", id=identifier)


def _svg(width: float, height: float, body: Sequence[Html], title: str) -> Html:
    cursor = tag("line", x1="0", x2="0", y1=_px(TOP), y2=_px(height - BOTTOM), class_="cursor")
    return tag("svg", *body, cursor, viewBox=f"0 0 {_px(width)} {_px(height)}", role="img", aria_label=title)


def _x_name(chart: Chart, x: float) -> str:
    return chart.x_names[int(x)] if chart.x_names else format_number(x)


def _x_label(name: str, x: float) -> str:
    return f"{name} {format_number(x)}" if name else format_number(x)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

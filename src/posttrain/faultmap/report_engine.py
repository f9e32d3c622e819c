"""What the engine, the trainer and the machine did, on one time axis, and who waited for whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from posttrain.faultmap.charts import RIGHT, Chart, Drawing, Hover, HoverSeries, Series, draw
from posttrain.faultmap.markup import Html, tag
from posttrain.faultmap.phases import LANE_OF, LANES, ORDER, Clock, Phase, clock_of, coarsen, phases_of, waiting_of
from posttrain.faultmap.scales import format_number, percent, thin
from posttrain.rundir.engine import EngineSample
from posttrain.rundir.reading import LoadedRun

WIDTH, LEFT, LANE = 1100.0, 62.0, 19.0
TONES = {
    "rollout": 1,
    "training": 2,
    "sync": 3,
    "grading": 4,
    "scoring": 5,
    "evaluation": 7,
    "writing": 6,
    "checkpoint": 6,
}
MAX_BANDS = 1200
COLUMNS = 500
POINTS = 400


def engine_charts(run: LoadedRun, hovers: dict[str, object]) -> Html | None:
    """Phases, tokens/s, KV use and requests above each other; ``None`` where the run has neither record."""
    phases = phases_of(run.metrics.rows)
    samples = run.engine.samples
    if not phases and not samples:
        return None
    clock = clock_of(phases, [s.time for s in samples])
    unit, scale = ("minutes", 60.0) if clock.total > 300 else ("seconds", 1.0)
    x_range = (0.0, clock.total / scale)
    drawings = [_bands(phases, clock, scale, x_range, unit)] if phases else []
    panels = [_rates(samples), _kv(samples), _requests(samples), _machine(samples)]
    last = max((i for i, (_, series, _) in enumerate(panels) if series), default=-1)
    for i, (title, series, share) in enumerate(panels):
        if series:
            drawings.append(
                _panel(title, series, share, samples, (clock, scale), x_range, unit if i == last else "", i)
            )
    for i, drawing in enumerate(drawings):
        hovers[f"engine-{i}"] = drawing.hover
    marked = [Html(d.markup.replace('id="engine"', f'id="engine-{i}"', 1)) for i, d in enumerate(drawings)]
    return tag("div", *marked, class_="stack")


def waiting_table(run: LoadedRun) -> Html | None:
    """Engine, grader, trainer: share of the recorded time at work, and what they waited for."""
    rows = waiting_of(phases_of(run.metrics.rows))
    if not rows:
        return None
    body: list[Html] = []
    for row in rows:
        waits = ", ".join(f"{name} {percent(share)}" for name, share in row.waits_for if share >= 0.001)
        busy = tag("td", percent(row.busy), class_="number")
        body.append(tag("tr", tag("td", row.lane), busy, tag("td", waits or "nothing", class_="reason")))
    head = tag("tr", tag("th", "who"), tag("th", "at work", class_="number"), tag("th", "waits for"))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="card scroll waiting")


_Column = tuple[str, Callable[[EngineSample], float | None]]
_Panel = tuple[str, Sequence[_Column], bool]


def _rates(samples: Sequence[EngineSample]) -> _Panel:
    columns: list[_Column] = [
        ("rollout", lambda s: s.generated_tokens_per_second),
        ("training", lambda s: s.trained_tokens_per_second),
    ]
    return "Tokens per second", _present(columns, samples), False


def _kv(samples: Sequence[EngineSample]) -> _Panel:
    columns: list[_Column] = [
        ("KV memory used", lambda s: _ratio(s.kv_bytes_used, s.kv_bytes_limit)),
        ("KV memory allocated", lambda s: _ratio(s.kv_bytes_allocated, s.kv_bytes_limit)),
    ]
    return "KV memory, share of its limit", _present(columns, samples), True


def _requests(samples: Sequence[EngineSample]) -> _Panel:
    columns: list[_Column] = [("running", lambda s: s.running), ("waiting", lambda s: s.waiting)]
    return "Requests", _present(columns, samples), False


def _machine(samples: Sequence[EngineSample]) -> _Panel:
    columns: list[_Column] = [("CPU", lambda s: s.cpu_share), ("device", lambda s: s.device_utilisation)]
    return "Machine, share in use", _present(columns, samples), True


def _panel(
    title: str, columns: Sequence[_Column], share: bool, samples: Sequence[EngineSample], time: tuple[Clock, float],
    x_range: tuple[float, float], x_label: str, index: int,
) -> Drawing:  # fmt: skip
    clock, scale = time
    at = [clock(s.time) / scale for s in samples]
    series: list[Series] = []
    for tone, (name, read) in enumerate(columns, 1):
        x, y = thin(at, [_number(read(s)) for s in samples], POINTS)
        series.append(Series(name, x, y, tone))
    return draw(
        Chart(
            title, series, "share" if share else "", x_label, 0.0, 1.0 if share else None, x_range,
            height=118.0 if x_label else 104.0, width=WIDTH, left=LEFT,
        ),
        "engine",
    )  # fmt: skip


def _bands(phases: Sequence[Phase], clock: Clock, scale: float, x_range: tuple[float, float], unit: str) -> Drawing:
    shown = phases if len(phases) <= MAX_BANDS else coarsen(phases, COLUMNS)
    right = WIDTH - RIGHT

    def place(seconds: float) -> float:
        return LEFT + (right - LEFT) * seconds / scale / (x_range[1] or 1.0)

    height = 8 + LANE * len(LANES)
    body: list[Html] = []
    for row, lane in enumerate(LANES):
        y = 4 + row * LANE
        body.append(tag("text", lane, x=f"{LEFT - 6:.0f}", y=f"{y + 12:.1f}", class_="lane"))
        body.append(
            tag(
                "rect",
                x=f"{LEFT:.0f}",
                y=f"{y:.1f}",
                width=f"{right - LEFT:.1f}",
                height=f"{LANE - 4:.0f}",
                class_="frame",
            )
        )
    for phase in shown:
        start = place(clock(phase.start))
        width = max(0.4, place(clock(phase.end)) - start)
        y = 4 + LANES.index(LANE_OF[phase.name]) * LANE
        size = {"width": f"{width:.2f}", "height": f"{LANE - 4:.0f}"}
        body.append(tag("rect", x=f"{start:.2f}", y=f"{y:.1f}", **size, class_=f"phase t{TONES[phase.name]}"))
    body.append(tag("line", x1="0", x2="0", y1="0", y2=f"{height:.0f}", class_="cursor"))
    svg = tag("svg", *body, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label="phases over time")
    names = [name for name in ORDER if any(p.name == name for p in phases)]
    keys = [tag("span", tag("i", class_=f"key block t{TONES[name]}"), name, class_="legend") for name in names]
    caption = tag("figcaption", tag("b", "Who works"), tag("span", *keys, class_="legends"))
    hover = _band_hover(shown, place, clock, scale, unit)
    return Drawing(tag("figure", caption, svg, class_="chart", id="engine"), hover)


def _band_hover(
    phases: Sequence[Phase], place: Callable[[float], float], clock: Clock, scale: float, unit: str
) -> Hover:
    middles = [clock((p.start + p.end) / 2) for p in phases]
    names = [name for name in ORDER if any(p.name == name for p in phases)]
    labels = [f"step {p.step}, {format_number(m / scale)} {unit}" for p, m in zip(phases, middles, strict=True)]
    rows = [
        HoverSeries(
            name=n, tone=TONES[n], values=[f"{format_number(p.seconds)} s" if p.name == n else "" for p in phases]
        )
        for n in names
    ]
    return Hover(x=[round(place(m), 1) for m in middles], labels=labels, series=rows)


def _present(columns: Sequence[_Column], samples: Sequence[EngineSample]) -> list[_Column]:
    return [column for column in columns if any(_number(column[1](s)) is not None for s in samples)]


def _ratio(used: float | None, limit: float | None) -> float | None:
    first, second = _number(used), _number(limit)
    return first / second if first is not None and second else None


def _number(value: object) -> float | None:
    """A damaged line may hold anything; only finite numbers are drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

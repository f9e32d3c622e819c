"""The curves of a report, ordered as one looks: reward, update, log-probs, engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.charts import Chart, Drawing, Heatmap, Series, draw, draw_heatmap
from posttrain.faultmap.markup import Html, tag
from posttrain.faultmap.scales import format_number, thin
from posttrain.rundir.metrics import MetricsTable
from posttrain.signals.registry import UnknownSignalError, signal_for
from posttrain.signals.signal import Signal

POINTS = 240


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart: which signal, under which short name."""

    signal: str
    name: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class CurveChart:
    """A chart of several signals with one unit."""

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    floor: float | None = None
    ceiling: float | None = None
    y_log: bool = False
    note: str = ""


REWARD = (
    CurveChart("Reward", (Curve("reward/mean", "mean"), Curve("reward/success", "success", True)), "", 0.0),
    CurveChart(
        "Zero-variance groups",
        (
            Curve("reward/zero_variance_groups", "all"),
            Curve("reward/all_success_groups", "solved", True),
            Curve("reward/all_fail_groups", "failed", True),
        ),
        "share",
        0.0,
        1.0,
    ),
    CurveChart("Without a reward", (Curve("reward/ungradable_share", "ungradable or failed"),), "share", 0.0, 0.05),
)
UPDATE = (
    CurveChart(
        "Entropy",
        (Curve("policy/entropy", "policy"), Curve("policy/sampled_entropy", "sampled tokens", True)),
        "nats",
        0.0,
    ),
    CurveChart("Gradient norm", (Curve("policy/grad_norm", "before clipping"),), "", 0.0),
    CurveChart(
        "Clipped tokens",
        (
            Curve("policy/clip_fraction_low", "low"),
            Curve("policy/clip_fraction_high", "high"),
            Curve("policy/out_of_bounds_share", "out of bounds", True),
        ),
        "share",
        0.0,
        0.01,
    ),
    CurveChart("Ratio, largest", (Curve("policy/ratio_max", "largest"),), "", 1.0),
    CurveChart("Effective sample size", (Curve("policy/ratio_ess", "of policy ratios"),), "share", None, 1.0),
    CurveChart(
        "Tokens that teach",
        (Curve("policy/gradient_token_share", "with a gradient"), Curve("policy/success_token_share", "of successes")),
        "share",
        0.0,
        1.0,
    ),
    CurveChart("Distance to the reference", (Curve("policy/anchor_kl", "KL, k3"),), "nats", 0.0),
    CurveChart("Learning rate", (Curve("policy/learning_rate", "applied"),), "", 0.0),
)
GIVEN_ROWS = (
    CurveChart(
        "Held-out rows",
        (
            Curve("held_out/accuracy", "accuracy"),
            Curve("held_out/ranking_accuracy", "by log-prob alone", True),
            Curve("held_out/style_accuracy", "by style alone", True),
        ),
        "share",
        0.0,
        1.0,
    ),
    CurveChart("Held-out loss", (Curve("held_out/loss", "objective"), Curve("held_out/token_nll", "nats per token"))),
    CurveChart(
        "Rewards of the rows",
        (
            Curve("preference/chosen_reward", "chosen"),
            Curve("preference/rejected_reward", "rejected"),
            Curve("preference/margin", "margin", True),
        ),
    ),
    CurveChart("Chosen answers", (Curve("preference/chosen_logprob_change", "log-prob since the start"),), "nats"),
    CurveChart("Length in the margin", (Curve("preference/length_margin_correlation", "correlation"),), "", -1.0, 1.0),
)
LOGPROBS = (
    CurveChart(
        "Sampler–trainer mismatch",
        (Curve("logprobs/mismatch_mean", "mean |d|"), Curve("logprobs/mismatch_max", "max |d|")),
        "nats",
        y_log=True,
    ),
    CurveChart("Mismatch as KL", (Curve("logprobs/mismatch_k3", "k3"),), "nats", y_log=True),
    CurveChart("Correction weights", (Curve("logprobs/ratio_ess", "effective sample size"),), "share", None, 1.0),
)
SAMPLES = (
    CurveChart(
        "Completion length",
        (
            Curve("rollout/length_mean", "mean"),
            Curve("rollout/length_correct_mean", "right", True),
            Curve("rollout/length_wrong_mean", "wrong", True),
            Curve("rollout/length_p99", "p99"),
        ),
        "tokens",
        0.0,
    ),
    CurveChart("Truncated", (Curve("rollout/truncated_share", "length or context"),), "share", 0.0, 0.05),
    CurveChart("Different completions in a group", (Curve("rollout/unique_share", "unique"),), "share", 0.0, 1.0),
)


def curve_chart(table: MetricsTable, plan: CurveChart) -> Chart | None:
    """The chart with the curves that the run has; ``None`` where it has none of them."""
    names = set(table.names())
    series: list[Series] = []
    lost: set[float] = set()
    for tone, curve in enumerate(plan.curves, 1):
        if curve.signal in names:
            line, bad = series_of(table, curve, tone)
            series.append(line)
            lost.update(bad)
    if not series:
        return None
    healthy = _healthy(plan.curves[0].signal) if plan.curves[0].signal in names else None
    return Chart(
        plan.title, series, plan.unit, floor=plan.floor, ceiling=plan.ceiling, y_log=plan.y_log, lost=sorted(lost),
        healthy=healthy, note=plan.note,
    )  # fmt: skip


def series_of(table: MetricsTable, curve: Curve, tone: int) -> tuple[Series, list[float]]:
    """One signal as a line of at most POINTS points, and the steps at which its value was not finite."""
    steps, values = table.series(curve.signal)
    lost = steps[~np.isfinite(values)].astype(float).tolist()
    x, y = thin(steps.astype(float).tolist(), values.tolist(), POINTS)
    return Series(curve.name, x, y, tone, dashed=curve.dashed), lost


def part_charts(table: MetricsTable) -> list[CurveChart]:
    """One chart of the named parts of the reward, if there are any."""
    parts = [name.split("/")[2] for name in table.names() if name.startswith("reward/part/") and name.endswith("/mean")]
    curves = [Curve(f"reward/part/{part}/mean", part) for part in parts[:6]]
    note = f"6 of {len(parts)} parts shown" if len(parts) > 6 else ""
    return [CurveChart("Parts of the reward", curves, "", 0.0, note=note)] if curves else []


def evaluation_chart(table: MetricsTable, environment: str, title: str) -> Chart | None:
    """Held-out pass@1 with its interval over steps, and greedy decoding beside it."""
    prefix = f"evaluation/{environment}"
    steps, values = table.series(f"{prefix}/pass@1")
    if not steps.size:
        return None
    x = steps.astype(float).tolist()
    bounds = [_aligned(table, f"{prefix}/pass@1_{end}", steps.tolist()) for end in ("low", "high")]
    series = [Series("temperature 1", x, values.tolist(), 1, bounds[0], bounds[1], markers=True)]
    greedy_steps, greedy = table.series(f"{prefix}/greedy_success")
    if greedy_steps.size:
        at = greedy_steps.astype(float).tolist()
        series.append(Series("greedy", at, greedy.tolist(), tone=2, dashed=True, markers=True))
    return Chart(
        title,
        series,
        "share",
        floor=0.0,
        ceiling=1.0,
        note="Band: 95 % bootstrap over tasks.",
    )


def evaluated_environments(table: MetricsTable) -> list[str]:
    """Names of the environments that were evaluated."""
    return sorted({name.split("/")[1] for name in table.names() if name.startswith("evaluation/")})


def evaluation_values(table: MetricsTable, environment: str) -> dict[int, dict[str, float]]:
    """Evaluation values of one environment by step, names without their prefix."""
    prefix = f"evaluation/{environment}/"
    found: dict[int, dict[str, float]] = {}
    for row in table.rows:
        values = {n.removeprefix(prefix): v for n, v in row.values.items() if n.startswith(prefix)}
        if values:
            found.setdefault(row.step, {}).update(values)
    return found


def draw_all(charts: Sequence[tuple[str, Chart] | tuple[str, Heatmap]], hovers: dict[str, object]) -> Html:
    """Draw charts in a grid and collect what they show on hover."""
    drawings: list[Drawing] = []
    for identifier, chart in charts:
        drawing = draw(chart, identifier) if isinstance(chart, Chart) else draw_heatmap(chart, identifier)
        hovers[identifier] = drawing.hover
        drawings.append(drawing)
    return tag("div", *(d.markup for d in drawings), class_="grid")


def signal_table(table: MetricsTable) -> Html:
    """Every signal of the run: first and last value, range, and what it means."""
    head = tag("tr", *(tag("th", h, class_="number" if h in ("first", "last", "lowest", "highest") else None)
                       for h in ("signal", "first", "last", "lowest", "highest", "unit", "what it is")))  # fmt: skip
    rows = [_signal_row(table, name) for name in table.names()]
    body = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", body, class_="scroll")


def _signal_row(table: MetricsTable, name: str) -> Html:
    _, values = table.series(name)
    finite = values[np.isfinite(values)]
    signal = _signal(name)
    unit = signal.unit if signal else ""
    numbers: Mapping[str, float | None] = {
        "first": float(values[0]),
        "last": float(values[-1]),
        "lowest": float(finite.min()) if finite.size else None,
        "highest": float(finite.max()) if finite.size else None,
    }
    cells = [tag("td", format_number(v, unit), class_="number") for v in numbers.values()]
    return tag(
        "tr", tag("td", name, class_="value"), *cells, tag("td", "" if unit == "share" else unit),
        tag("td", signal.definition if signal else "not a signal this version knows", class_="reason"),
    )  # fmt: skip


def _signal(name: str) -> Signal | None:
    try:
        return signal_for(name)
    except UnknownSignalError:
        return None


def _healthy(name: str) -> tuple[float | None, float | None] | None:
    signal = _signal(name)
    if signal is None or signal.healthy is None:
        return None
    return signal.healthy.low, signal.healthy.high


def _aligned(table: MetricsTable, name: str, steps: Sequence[int]) -> list[float | None]:
    at = dict(zip(*(column.tolist() for column in table.series(name)), strict=True))
    return [at.get(step) for step in steps]

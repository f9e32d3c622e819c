"""What training won on held-out tasks: the headline, success against generated tokens, the table of both ends."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.faultmap.charts import Chart, Series
from posttrain.faultmap.markup import Html, join, tag
from posttrain.faultmap.report_curves import evaluated_environments, evaluation_values
from posttrain.faultmap.report_summary import GainSummary
from posttrain.faultmap.scales import format_number, percent
from posttrain.rundir.metrics import MetricsTable

_PASS = re.compile(r"pass@(\d+)")
_SHARES = ("parsable_share", "correct_given_parsable", "truncated_share", "ungradable_share", "greedy_success")
_NAMES = {
    "reward_mean": "mean reward",
    "greedy_success": "greedy decoding",
    "parsable_share": "with an answer to judge",
    "correct_given_parsable": "right, given an answer to judge",
    "truncated_share": "truncated",
    "ungradable_share": "without a reward",
    "length_mean": "mean tokens",
    "tasks": "tasks",
}


@dataclass(frozen=True, slots=True)
class Ends:
    """First and last evaluation of one environment. ``last_step`` equals ``first_step`` where there was only one."""

    environment: str
    first_step: int
    first: Mapping[str, float]
    last_step: int
    last: Mapping[str, float]

    @property
    def has_change(self) -> bool:
        """True if there are two evaluations to compare."""
        return self.last_step != self.first_step


def ends_of(table: MetricsTable) -> list[Ends]:
    """First and last evaluation of every environment with a pass@1."""
    found: list[Ends] = []
    for environment in evaluated_environments(table):
        values = {step: v for step, v in evaluation_values(table, environment).items() if "pass@1" in v}
        if values:
            first, last = min(values), max(values)
            found.append(Ends(environment, first, values[first], last, values[last]))
    return found


def headline(ends: Ends, gain: GainSummary) -> Html:
    """Held-out pass@1 before and after in large type, the gain, and what the model learnt in words."""
    before, after = _end(ends.first, ends.first_step, "from"), _end(ends.last, ends.last_step, "to")
    lines: list[Html] = []
    if ends.has_change:
        lines.append(
            tag("p", _gain(ends, gain), f" held-out success with one sample, {ends.environment}", class_="verdict")
        )
        jump = tag("div", before, tag("span", "→", class_="arrow"), after, class_="jump")
    else:
        jump = tag("div", after, class_="jump")
        lines.append(
            tag("p", f"Held-out success with one sample, {ends.environment}. Evaluated once so far.", class_="verdict")
        )
    lines += [tag("p", sentence, class_="verdict") for sentence in gain.sentences]
    return tag("div", jump, tag("div", *lines), class_="card result")


def cost_curve(values: Mapping[str, float]) -> list[tuple[int, float, float]]:
    """(k, k x mean tokens, pass@k) by k; empty without a mean length."""
    length = values.get("length_mean")
    if length is None or not math.isfinite(length):
        return []
    ks = sorted(int(match[1]) for name in values if (match := _PASS.fullmatch(name)))
    return [(k, k * length, values[f"pass@{k}"]) for k in ks if math.isfinite(values[f"pass@{k}"])]


def cost_chart(ends: Ends, title: str) -> Chart | None:
    """Success against generated tokens, base and trained."""
    rows = [("base", 6, ends.first)] + ([("trained", 1, ends.last)] if ends.has_change else [])
    series: list[Series] = []
    ks: set[int] = set()
    for name, tone, values in rows:
        curve = cost_curve(values)
        if curve:
            ks.update(k for k, _, _ in curve)
            low, high = ([values.get(f"pass@{k}_{end}") for k, _, _ in curve] for end in ("low", "high"))
            points = [cost for _, cost, _ in curve], [value for _, _, value in curve]
            series.append(Series(name, *points, tone=tone, low=low, high=high, markers=True))
    if not series:
        return None
    note = f"Each point is pass@k, k = {', '.join(map(str, sorted(ks)))}, at k times the mean length."
    return Chart(
        title,
        series,
        "share",
        "tokens a task",
        0.0,
        1.0,
        x_log=True,
        note=note,
    )


def rows_of(ends: Ends) -> list[tuple[str, str, str]]:
    """Every evaluation value as text: name, first, last."""
    names = sorted({n for n in (*ends.first, *ends.last) if not n.endswith(("_low", "_high"))}, key=_order)
    return [(_NAMES.get(name, name), _cell(ends.first, name), _cell(ends.last, name)) for name in names]


def table_of(ends: Ends) -> Html:
    """Every evaluation value, first and last."""
    steps = (ends.first_step, ends.last_step) if ends.has_change else (ends.last_step,)
    heads = [tag("th", f"held out, {ends.environment}"), *(tag("th", f"step {s}", class_="number") for s in steps)]
    body: list[Html] = []
    for name, first, last in rows_of(ends):
        cells = (first, last) if ends.has_change else (last,)
        body.append(tag("tr", tag("td", name), *(tag("td", cell, class_="number") for cell in cells)))
    return tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body)), class_="card scroll")


def _cell(values: Mapping[str, float], name: str) -> str:
    value = values.get(name)
    is_share = name in _SHARES or "@" in name
    text = (percent(value) if is_share else format_number(value)) if value is not None else "–"
    return text + (f"  {bounds}" if (bounds := _interval(values, name)) else "")


def _interval(values: Mapping[str, float], name: str = "pass@1") -> str:
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    if low is None or high is None:
        return ""
    show = percent if "@" in name else format_number
    return f"[{show(low).removesuffix(' %')}, {show(high).removesuffix(' %')}]"


def _gain(ends: Ends, gain: GainSummary) -> Html:
    paired = gain.differences.get("pass@1")
    value = paired.value if paired else ends.last["pass@1"] - ends.first["pass@1"]
    text = tag("span", f"{100 * value:+.0f} points", class_="gain up" if value >= 0 else "gain down")
    return join((text, f" (95 % interval {100 * paired.low:+.0f} to {100 * paired.high:+.0f})" if paired else ""))


def _end(values: Mapping[str, float], step: int, kind: str) -> Html:
    bounds = _interval(values)
    place = f"{bounds} at step {step}" if bounds else f"at step {step}"
    return tag("div", percent(values.get("pass@1")), tag("small", place), class_=kind)


def _order(name: str) -> tuple[int, int, str]:
    match = _PASS.fullmatch(name)
    if match:
        return (0, int(match[1]), name)
    return ((1 if name.startswith("greedy") else 2 if name.startswith("majority") else 3), 0, name)

"""Group statistics: how hard the tasks were over time, and which of them the update listened to."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.faultmap.charts import Chart, Heatmap, Series
from posttrain.faultmap.report_samples import BINS, StepGroups

COLUMNS = 60


def difficulty_chart(groups: Sequence[StepGroups]) -> Heatmap:
    """Share of the groups of a step in each bin of success rate."""
    shown = [g for g in groups if sum(g.groups)]
    note = "Darker: more groups. In the top row every attempt succeeds, in the bottom row none does: nothing to learn."
    return Heatmap(
        "Groups by success rate",
        [g.step for g in shown],
        list(BINS),
        [_shares(g.groups) for g in shown],
        tone=1,
        unit="% solved",
        note=note,
    )


def attention_chart(groups: Sequence[StepGroups]) -> Heatmap:
    """Share of |advantage| x tokens that comes from each bin of success rate."""
    shown = [g for g in groups if sum(g.advantage)]
    note = "Darker: more of the step's |advantage| × trained tokens comes from groups of this success rate."
    return Heatmap(
        "What the update listened to",
        [g.step for g in shown],
        list(BINS),
        [_shares(g.advantage) for g in shown],
        tone=2,
        unit="% solved",
        note=note,
    )


def total_chart(groups: Sequence[StepGroups]) -> Chart:
    """Both distributions over the whole run, side by side."""
    series: list[Series] = []
    x = [float(i) for i in range(len(BINS))]
    for name, tone, column in (
        ("groups", 1, [g.groups for g in groups]),
        ("|advantage| × tokens", 2, [g.advantage for g in groups]),
    ):
        totals = [sum(values) for values in zip(*column, strict=True)] if column else []
        if sum(totals):
            series.append(Series(name, x, _shares(totals), tone, markers=True))
    return Chart("Whole run", series, "share", "success rate of the group", 0.0, 1.0, x_names=[f"{n} %" for n in BINS])


def _shares(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values] if total else [0.0] * len(values)

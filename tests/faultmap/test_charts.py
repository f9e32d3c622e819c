from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.faultmap.charts import Chart, Heatmap, Series, draw, draw_heatmap
from posttrain.faultmap.scales import format_number, log_ticks, nice_ticks, scale, sparkline, thin


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_are_inside_round_and_evenly_spaced(low: float, span: float) -> None:
    high = low + span
    if span < 1e-6 * abs(low):
        return  # too few digits are left between the ends
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 6
    assert all(low - 1e-6 * span <= t <= high + 1e-6 * span for t in ticks)
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    assert np.diff(ticks) == pytest.approx(step, rel=1e-3)
    assert float(f"{step:.3e}".split("e")[0]) in (1.0, 2.0, 2.5, 5.0)


def test_the_usual_ranges_get_the_usual_ticks() -> None:
    assert nice_ticks(0, 1) == [0, 0.5, 1]
    assert nice_ticks(0, 40, 4) == [0, 10, 20, 30, 40]
    assert nice_ticks(0, 0.3) == [0, 0.1, 0.2, 0.3]


@given(st.floats(1e-12, 1e12), st.floats(1.0, 1e6))
def test_log_ticks_enclose_the_data(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert len(ticks) >= 2
    assert ticks[0] <= low * (1 + 1e-9)


def test_larger_values_are_drawn_higher_and_later_ones_further_right() -> None:
    drawing = draw(Chart("t", [Series("s", [0, 1, 2], [0.0, 5.0, 10.0])]), "c")
    points = [tuple(map(float, p)) for p in re.findall(r"[ML]([\d.]+) ([\d.]+)", drawing.markup)]
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert [y for _, y in points] == sorted({y for _, y in points}, reverse=True)


def test_what_was_not_measured_or_not_finite_is_a_gap_and_a_mark() -> None:
    chart = Chart("t", [Series("s", [1, 2, 3, 4, 5], [1.0, 2.0, math.nan, None, 3.0])], lost=[3.0])
    drawing = draw(chart, "c")
    assert re.search(r'<path d="M[\d. ]+L[\d. ]+M[\d. ]+" class="line t1"', drawing.markup)
    assert drawing.markup.count("×") == 1
    assert "NaN" not in drawing.markup
    assert "nan" not in drawing.markup
    assert drawing.hover["series"][0]["values"] == ["1", "2", "not finite", "–", "3"]


def test_an_empty_chart_says_so() -> None:
    assert "Nothing was recorded" in draw(Chart("t", []), "c").markup
    assert (
        "All 2 values were not finite"
        in draw(Chart("t", [Series("s", [1, 2], [math.nan] * 2)], lost=[1, 2]), "c").markup
    )
    assert "Nothing was recorded" in draw_heatmap(Heatmap("t", [], ["a"], []), "c").markup


def test_hover_rows_join_series_with_different_steps() -> None:
    chart = Chart("t", [Series("a", [1, 3], [0.5, 0.7]), Series("b", [2], [0.1], low=[0.0], high=[0.2])], "share")
    hover = draw(chart, "c").hover
    assert hover["labels"] == ["step 1", "step 2", "step 3"]
    assert hover["series"][0]["values"] == ["50 %", "", "70 %"]
    assert hover["series"][1]["values"] == ["", "10 %  [0 %, 20 %]", ""]


@pytest.mark.parametrize("y", [[0.0, 0.0], [3.0], [-2.0, -2.0], [0.0, 1e-9], [1e300, -1e300]])
@pytest.mark.parametrize("log", [False, True])
def test_degenerate_ranges_are_drawn(y: list[float], log: bool) -> None:
    x = [float(i) for i in range(len(y))]
    markup = draw(Chart("t", [Series("s", x, y)], x_log=log, y_log=log, floor=0.0), "c").markup
    assert "nan" not in markup
    assert "inf" not in markup


def test_titles_and_names_are_escaped() -> None:
    markup = draw(Chart("<script>", [Series("<img>", [1, 2], [1, 2])], note="<b>"), "c").markup
    assert "<script>" not in markup
    assert "<img>" not in markup
    assert "<b></b>" not in markup


def test_heatmap_cells_are_as_strong_as_their_share() -> None:
    drawing = draw_heatmap(Heatmap("t", [1, 2], ["low", "high"], [[1.0, 0.0], [0.25, 0.75]]), "c")
    strengths = [float(v) for v in re.findall(r'fill-opacity="([\d.]+)"', drawing.markup)]
    assert strengths == sorted(strengths, key=[1.0, 0.31, 0.77].index)
    assert [s["name"] for s in drawing.hover["series"]] == ["high", "low"]
    assert drawing.hover["series"][1]["values"] == ["100 %", "25 %"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=600))
def test_thinning_keeps_the_mean_of_what_it_joins(values: list[float]) -> None:
    x, y = thin([float(i) for i in range(len(values))], values, 50)
    assert len(x) == len(y) == min(50, len(values))
    assert x == sorted(x)
    assert min(values) - 1e-6 <= min(v for v in y if v is not None)
    if len(values) % 50 == 0:
        assert sum(v for v in y if v is not None) / len(y) == pytest.approx(
            sum(values) / len(values), rel=1e-6, abs=1e-3
        )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "", "0"), (1234.0, "", "1234"), (77_500, "", "77.5k"), (134_515_008, "", "135M"), (1e-5, "", "1e-5"),
        (0.00512, "", "0.00512"), (0.667, "share", "66.7 %"), (None, "", "–"), (math.inf, "", "not finite"),
        (2.0, "", "2"), (-0.5, "", "-0.5"),
    ],
)  # fmt: skip
def test_numbers_for_people(value: float | None, unit: str, text: str) -> None:
    assert format_number(value, unit) == text


def test_scale_maps_ends_to_ends() -> None:
    assert scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)
    assert scale(0, 4, 10, 0, log=False)(1) == pytest.approx(7.5)


def test_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, math.nan, 2], 8) == "▁█"
    assert sparkline([math.nan], 8) == ""
    assert sparkline([0, 0, 10, 10], 2) == "▁█"
    assert len(sparkline(list(range(1000)), 37)) == 37

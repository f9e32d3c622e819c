"""Statistics of paired seeds, against tables of Student's t and values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.orchestration.ablation.paired import (
    holm,
    paired_difference,
    standard_deviation,
    t_quantile,
    t_within,
)

FROM_TABLES = {
    1: 12.706205,
    2: 4.302653,
    3: 3.182446,
    4: 2.776445,
    5: 2.570582,
    9: 2.262157,
    10: 2.228139,
    30: 2.042272,
}


@pytest.mark.parametrize("freedom", FROM_TABLES)
def test_the_quantiles_of_the_tables(freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(FROM_TABLES[freedom], abs=1e-6)


def test_closed_forms_of_few_degrees_of_freedom() -> None:
    for t in (0.0, 0.3, 1.0, 2.5, 40.0):
        assert t_within(t, 1) == pytest.approx(2 / math.pi * math.atan(t), abs=1e-15)
        assert t_within(t, 2) == pytest.approx(t / math.sqrt(2 + t * t), abs=1e-15)
    assert t_within(1.959964, 100_000) == pytest.approx(0.95, abs=1e-5)  # nearly normal


@given(st.floats(0, 50), st.floats(0.001, 5), st.integers(1, 60))
def test_probability_grows_with_t_and_with_freedom(t: float, more: float, freedom: int) -> None:
    rounding = 1e-12
    assert 0.0 <= t_within(t, freedom) <= t_within(t + more, freedom) + rounding <= 1.0 + rounding
    assert t_within(t, freedom) <= t_within(t, freedom + 1) + rounding


def test_three_pairs_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, s = 1, standard error 1/sqrt 3, t = 2 sqrt 3 with 2 degrees of freedom, whose
    # P(|T| > t) is 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14). The base's standard deviation is 2.
    found = paired_difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 3.0, 1: 6.0, 2: 9.0})
    assert found is not None
    assert found.differences == (1.0, 2.0, 3.0)
    assert found.mean == 2.0
    assert found.effect == 1.0
    assert (found.low, found.high) == (
        pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6),
        pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6),
    )
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)


def test_pairs_are_made_by_seed_not_by_position() -> None:
    """Unpaired, these two differ by nothing against a spread of 4; paired, by 1 in each seed, nearly exactly."""
    base = {7: 0.0, 3: 4.0, 5: 8.0}
    found = paired_difference(base, {5: 9.0, 7: 1.1, 3: 5.0, 9: -50.0})
    assert found is not None
    assert found.seeds == (3, 5, 7)
    assert found.mean == pytest.approx(3.1 / 3)
    assert found.low is not None
    assert found.low > 0.8
    assert paired_difference(base, {1: 2.0}) is None


@pytest.mark.parametrize(
    ("base", "arm", "effect"),
    [
        ({0: 0.5}, {0: 0.7}, None),
        ({0: 0.5, 1: 0.5}, {0: 0.7, 1: 0.7}, None),
        ({0: 0.1, 1: 0.3}, {0: 0.1 + 0.6, 1: 0.3 + 0.6}, 0.6 / (0.2 / math.sqrt(2))),
        ({0: 0.1, 1: 0.3}, {0: 0.1, 1: 0.3}, 0.0),
    ],
)
def test_without_spread_there_is_no_interval(base: Any, arm: Any, effect: float | None) -> None:
    found = paired_difference(base, arm)
    assert found is not None
    assert (found.low, found.high, found.p) == (None, None, None)
    assert found.effect == (None if effect is None else pytest.approx(effect))


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.03, 0.04, 0.2 times 4, 3, 2, 1, each at least the one before.
    assert holm([0.04, 0.01, 0.2, 0.03]) == (pytest.approx(0.09), 0.04, 0.2, pytest.approx(0.09))
    assert holm([0.02, None]) == (0.04, None)
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p(values: list[float]) -> None:
    adjusted = [p for p in holm(values) if p is not None]
    assert len(adjusted) == len(values)
    assert all(p <= a <= 1.0 for p, a in zip(values, adjusted, strict=True))
    ordered = sorted(zip(values, adjusted, strict=True))
    assert [a for _, a in ordered] == sorted(a for _, a in ordered)


def test_standard_deviation_has_one_less_in_the_denominator() -> None:
    assert standard_deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert standard_deviation([1.0]) is None

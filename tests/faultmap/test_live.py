"""A live history is the one that would be read from the files, and its past does not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.faultmap.history import Facts
from posttrain.faultmap.live import LiveHistory


def live() -> LiveHistory:
    return LiveHistory("runs/x", Facts(group_size=4))


@given(st.lists(st.dictionaries(st.sampled_from(["reward/mean", "policy/entropy"]), st.floats()), max_size=200))
def test_what_is_added_is_what_is_there(rows: list[dict[str, float]]) -> None:
    growing = live()
    for step, values in enumerate(rows):
        growing.add(step, values)
    history = growing.history()
    for name in ("reward/mean", "policy/entropy"):
        expected = [(step, values[name]) for step, values in enumerate(rows) if name in values]
        assert history.course(name).steps.tolist() == [step for step, _ in expected]
        np.testing.assert_array_equal(history.course(name).values, [value for _, value in expected])


def test_an_earlier_history_keeps_its_length_and_values() -> None:
    growing = live()
    for step in range(100):
        growing.add(step, {"reward/mean": float(step)})
    early = growing.history()
    for step in range(100, 1000):
        growing.add(step, {"reward/mean": float(step)})
    assert early.course("reward/mean").values.tolist() == [float(i) for i in range(100)]
    assert len(growing.history().course("reward/mean")) == 1000


def test_evaluation_joins_the_step_it_belongs_to_and_the_last_value_counts() -> None:
    growing = live()
    growing.add(3, {"reward/mean": 0.5, "time/step": 1.0})
    growing.add(3, {"evaluation/a/pass@1": 0.4, "time/step": 2.0})
    history = growing.history()
    assert history.course("evaluation/a/pass@1").steps.tolist() == [3]
    assert history.course("time/step").values.tolist() == [2.0]
    assert history.facts.group_size == 4


def test_steps_do_not_go_back() -> None:
    growing = live()
    growing.add(3, {"reward/mean": 0.5})
    with pytest.raises(ValueError, match="step 2 comes after step 3"):
        growing.add(2, {"reward/mean": 0.5})


def test_derived_signals_are_there_as_in_a_log_that_was_read() -> None:
    growing = live()
    growing.add(1, {"policy/clip_fraction_low": 0.1, "policy/clip_fraction_high": 0.2})
    assert growing.history().course("policy/clip_fraction").values.tolist() == pytest.approx([0.3])

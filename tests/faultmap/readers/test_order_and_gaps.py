"""Steps logged twice, out of order or not at all; values that are null, text or not finite."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_logs import write_lines

from posttrain.faultmap.history import History
from posttrain.faultmap.readers import read_history
from posttrain.faultmap.readers.numbers import to_number
from posttrain.faultmap.readers.table import TableBuilder
from posttrain.faultmap.readers.timeline import keep_latest
from posttrain.signals.framework import Framework


def read(tmp_path: Path, rows: list[dict[str, object]], framework: Framework = Framework.TRL) -> History:
    return read_history(write_lines(tmp_path / "log.jsonl", rows), framework)


def test_after_a_resume_the_later_rows_count_and_the_lost_tail_is_gone(tmp_path: Path) -> None:
    first = [{"step": s, "reward": 0.1} for s in range(1, 11)]
    again = [{"step": s, "reward": 0.9} for s in range(6, 9)]
    history = read(tmp_path, [*first, *again])
    reward = history.course("reward/mean")
    assert reward.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8], "steps 9 and 10 belong to the attempt that died"
    assert reward.values.tolist() == [0.1] * 5 + [0.9] * 3
    assert any("logged again" in note for note in history.notes)


def test_rows_out_of_order_are_sorted_and_none_is_lost(tmp_path: Path) -> None:
    history = read(tmp_path, [{"step": s, "reward": s / 10} for s in (1, 2, 4, 3, 5)])
    assert history.course("reward/mean").steps.tolist() == [1, 2, 3, 4, 5]
    assert history.course("reward/mean").values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert any("not in order" in note for note in history.notes)


def test_an_evaluation_that_is_logged_late_drops_no_training_rows(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": s / 10} for s in range(1, 7)]
    rows.insert(5, {"step": 2, "eval_reward": 0.3})
    history = read(tmp_path, rows)
    assert history.course("reward/mean").steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert history.course("evaluation/eval/reward_mean").steps.tolist() == [2]


def test_two_rows_of_one_step_are_merged(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward": 0.5}, {"step": 1, "kl": 0.1}, {"step": 2, "reward": 0.6}, {"step": 2, "kl": 0.2}]
    history = read(tmp_path, rows)
    assert history.course("reward/mean").values.tolist() == [0.5, 0.6]
    assert history.course("policy/anchor_kl").values.tolist() == [0.1, 0.2]
    assert not any("logged again" in note for note in history.notes)


@given(st.lists(st.integers(-1, 12), max_size=40))
def test_what_is_kept_ascends_and_is_the_last_of_its_step(steps: list[int]) -> None:
    given_steps = np.array(steps, np.int64)
    kept = keep_latest(given_steps)
    taken = given_steps[kept.order]
    assert bool(np.all(np.diff(taken) > 0))
    for position in kept.order.tolist():
        assert steps[position] >= 0
        assert steps[position] not in steps[position + 1 :]
    if steps and steps[-1] >= 0:
        assert len(steps) - 1 in kept.order.tolist(), "the newest row always counts"
    if len(set(steps)) == len(steps):
        assert sorted(taken.tolist()) == sorted(s for s in steps if s >= 0), "without repeats nothing is lost"


def test_nan_infinity_null_and_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "reward": 0.5, "grad_norm": NaN, "kl": Infinity, "loss": null, "entropy": "0.25"}\n'
        '{"step": 2, "reward": 0.5, "grad_norm": "nan", "kl": "-Infinity", "loss": 0.5, "entropy": "inf"}\n'
        '{"step": "3", "reward": "0.75", "grad_norm": 1, "kl": true, "loss": "None of it", "entropy": 1e400}\n'
    )
    history = read_history(path, Framework.TRL)
    assert history.course("reward/mean").steps.tolist() == [1, 2, 3]
    norm, kl = history.course("policy/grad_norm").values, history.course("policy/anchor_kl").values
    assert np.isnan(norm[:2]).all()
    assert norm[2] == 1.0
    assert kl.tolist() == [math.inf, -math.inf, 1.0]
    loss = history.course("policy/loss")
    assert loss.steps.tolist() == [1, 2], "null is a value that was not finite; other text is none"
    assert math.isnan(loss.values[0])
    assert history.course("policy/entropy").values.tolist() == [0.25, math.inf, math.inf]
    assert any("written as text" in note for note in history.notes)


def test_null_in_a_table_of_nobody_known_is_no_value(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": s, "my_reward": 1.0, "reward": None if s % 2 else 0.5} for s in range(6)]
    assert read(tmp_path, rows, Framework.PLAIN).course("reward/mean").steps.tolist() == [0, 2, 4]


def test_rows_without_a_step_belong_to_the_step_before(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": 1, "reward": 0.1}, {"kl": 0.2}, {"step": 2, "reward": 0.2}, {"kl": 0.3}]
    assert read(tmp_path, rows).course("policy/anchor_kl").steps.tolist() == [1, 2]


@pytest.mark.parametrize("broken", [-5, 1e300, 2.5, "soon"])
def test_a_row_with_a_broken_step_is_left_out_and_named(tmp_path: Path, broken: object) -> None:
    rows: list[dict[str, object]] = [{"step": s, "reward": s / 100} for s in range(20)]
    rows[7]["step"] = broken
    history = read(tmp_path, rows)
    steps = history.course("reward/mean").steps.tolist()
    if broken == "soon":
        # Not a number at all: the row belongs to the one before it.
        assert steps == [s for s in range(20) if s != 7]
    else:
        assert steps == [s for s in range(20) if s != 7]
        assert any("no step number" in problem for problem in history.problems)


def test_step_counters_by_their_names(tmp_path: Path) -> None:
    for name in ("global_step", "_step", "iteration", "train/global_step", "training/global_step"):
        rows: list[dict[str, object]] = [{name: 10 * s, "reward": 0.5} for s in range(1, 4)]
        assert read(tmp_path, rows).course("reward/mean").steps.tolist() == [10, 20, 30], name
    both: list[dict[str, object]] = [{"_step": s, "train/global_step": 5 * s, "reward": 0.5} for s in range(1, 4)]
    assert read(tmp_path, both).course("reward/mean").steps.tolist() == [5, 10, 15]


def test_epochs_number_rows_only_where_each_has_its_own(tmp_path: Path) -> None:
    own: list[dict[str, object]] = [{"epoch": s, "reward": 0.5} for s in (2, 4, 6)]
    assert read(tmp_path, own).course("reward/mean").steps.tolist() == [2, 4, 6]
    shared: list[dict[str, object]] = [{"epoch": s // 3, "reward": 0.5} for s in range(9)]
    history = read(tmp_path, shared)
    assert history.course("reward/mean").steps.tolist() == list(range(1, 10))
    assert any("counts epochs only" in note for note in history.notes)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("0.5", 0.5),
        (" -1e-3 ", -1e-3),
        ("np.float64(1.5)", 1.5),
        ("tensor(0.25, device='cuda:0')", 0.25),
        ("+inf", math.inf),
        ("-Infinity", -math.inf),
        (True, 1.0),
        ("False", 0.0),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        ("1_000", None),
        ("٣", None),
        ("", None),
        ("0.5.1", None),
        ("1" * 1000, None),
        ("__import__('os')", None),
        ([1.0], None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_what_counts_as_a_number(cell: object, number: float | None) -> None:
    assert to_number(cell) == number


CELLS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from((10**400, -(10**400))),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.just([1.0, 2.0]),
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), CELLS, min_size=1), max_size=30))
def test_a_table_holds_every_number_of_every_row(rows: list[dict[str, object]]) -> None:
    builder = TableBuilder()
    for row in rows:
        builder.add(row)
    table = builder.build()
    assert table.rows == len(rows)
    for key in "abc":
        wanted = [
            (i, math.nan if row[key] is None else to_number(row[key])) for i, row in enumerate(rows) if key in row
        ]
        numbers = [(i, number) for i, number in wanted if number is not None]
        column = table.columns.get(key)
        if column is None:
            assert not numbers
            continue
        assert column.rows.tolist() == [i for i, _ in numbers]
        np.testing.assert_array_equal(column.values, np.array([number for _, number in numbers], np.float64))
        assert column.nulls.tolist() == [rows[i][key] is None for i, _ in numbers]


def test_objects_inside_rows_are_flattened() -> None:
    builder = TableBuilder()
    builder.add({"step": 1, "train": {"reward": 0.5, "deep": {"er": {"still": {"more": 1.0}}}}})
    builder.add({"step": 2, "train": {"reward": "0.75", "name": "x"}})
    table = builder.build()
    assert table.columns["train/reward"].values.tolist() == [0.5, 0.75]
    assert set(table.columns) == {"step", "train/reward"}
    assert table.texts == {"train/deep/er/still": 1, "train/name": 1}


def test_a_table_takes_no_more_keys_and_values_than_its_limits() -> None:
    builder = TableBuilder(most_keys=3)
    builder.add({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    table = builder.build()
    assert set(table.columns) == {"a", "b", "c"}
    assert "more than 3 different keys" in table.full

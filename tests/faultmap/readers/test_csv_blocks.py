"""A block of numbers read at once gives what reading it cell by cell gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.faultmap.readers import csv_table, read_history
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.source import open_source
from posttrain.faultmap.readers.structured import Parsed

_ODD = ("", "null", "NA", "nan", "NaN", "inf", "-Infinity", "1e400", "-0.0", " 0.5 ", "+1", "1_0", " ", "0x10", "True")
_WORSE = ("text", '"2,5"', '"two\nlines"', "1,2", "\ufeff", "٣", "9" * 40, "1e", "--1", "tensor(0.5)", "\0", "#")
_CELLS = st.one_of(st.floats().map(repr), st.integers(-(10**25), 10**25).map(str), st.sampled_from(_ODD))
_RARE = st.one_of(_CELLS, st.sampled_from(_WORSE))


def _read(path: Path) -> tuple[Parsed | None, list[str]]:
    remarks = Remarks()
    try:
        return csv_table.read_csv(open_source(path), remarks), list(remarks.problems)
    except InputError as error:
        return None, [str(error)]


def _same(path: Path, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "_BLOCK", block)
        blocks, told = _read(path)
        patch.setattr(csv_table._Body, "read_numbers", lambda *_: False)
        cells, expected = _read(path)
    assert told == expected
    assert (blocks is None) == (cells is None)
    if blocks is None or cells is None:
        return
    assert blocks.table.rows == cells.table.rows
    assert blocks.table.texts == cells.table.texts
    assert set(blocks.table.columns) == set(cells.table.columns)
    for key, column in cells.table.columns.items():
        read = blocks.table.columns[key]
        np.testing.assert_array_equal(read.rows, column.rows)
        np.testing.assert_array_equal(read.values, column.values)
        np.testing.assert_array_equal(read.nulls, column.nulls)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), block=st.integers(1, 200), cells=st.sampled_from((_CELLS, _RARE)))
def test_any_table_reads_the_same_in_blocks_of_any_size(
    tmp_path: Path, data: st.DataObject, block: int, cells: st.SearchStrategy[str]
) -> None:
    rows = data.draw(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=30))
    ends = data.draw(st.sampled_from(("\n", "\r\n", "\n\n")))
    header = data.draw(st.sampled_from(("step,loss,reward", "step,loss,loss", "Step,a - loss,b - loss")))
    path = tmp_path / "log.csv"
    path.write_text(ends.join([header, *(",".join(row) for row in rows)]), encoding="utf-8", newline="")
    _same(path, block)


def test_a_table_of_numbers_takes_the_fast_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{i / 7!r}\n" for i in range(5000)))
    monkeypatch.setattr(csv_table._Body, "read_rows", lambda *_: pytest.fail("read cell by cell"))
    parsed, problems = _read(path)
    assert parsed is not None
    assert not problems
    np.testing.assert_array_equal(parsed.table.columns["loss"].values, np.arange(5000) / 7)


@pytest.mark.parametrize("beside", ["0.5", "word", ""])
@pytest.mark.parametrize("odd", ["1_000", "٣"])
def test_what_no_logger_writes_is_text_whatever_stands_beside_it(tmp_path: Path, odd: str, beside: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"step,loss\n1,{odd}\n2,{beside}\n3,0.25\n", encoding="utf-8")
    parsed, _ = _read(path)
    assert parsed is not None
    assert 0 not in parsed.table.columns["loss"].rows
    assert parsed.table.texts["loss"] == 1 + (beside == "word")


@pytest.mark.parametrize("before", ["\n", "\n \n\r\n", "\ufeff\n"])
def test_empty_lines_before_the_header_are_no_header(tmp_path: Path, before: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(before + "step;loss\n1;0.5\n2;0.4\n", encoding="utf-8", newline="")
    history = read_history(path)
    np.testing.assert_array_equal(history.courses["policy/loss"].values, [0.5, 0.4])

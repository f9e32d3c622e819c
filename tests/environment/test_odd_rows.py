"""Rows that a JSON parser accepts and nothing after it can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.environment.sources import read_rows
from posttrain.errors import InputError


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deep_nesting_is_refused_in_one_line(depth: int, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "x", "extra": ' + "[" * depth + "]" * depth + "}\n")
    with pytest.raises(InputError, match="nested too deeply"):
        read_rows("environments.e.path", file)


def test_half_a_surrogate_pair_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "fine \\ud83d\\ude00"}\n{"prompt": "x\\ud800"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl:2, column 'prompt'.*\\ud800"):
        read_rows("environments.e.path", file)


def test_whole_pairs_and_other_scripts_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "\\ud83d\\ude00 \u00fc \u6f22"}\n', encoding="utf-8")
    assert read_rows("environments.e.path", file)[0].values["prompt"] == "\U0001f600 \u00fc \u6f22"

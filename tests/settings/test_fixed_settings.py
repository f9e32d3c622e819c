"""Settings of runs on fixed data: which tree a file fills, what is refused, the generated page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.cli.algorithms import print_row, print_table
from posttrain.errors import InputError
from posttrain.settings import FixedSettings, Settings, any_settings_from_mapping, settings_from_mapping
from posttrain.settings.algorithms import ROWS
from posttrain.settings.field import rationale
from posttrain.settings.fixed import check_fixed_settings, chosen_part, learning_rate_of
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.fixed_reference import PAGE, fixed_reference
from posttrain.settings.parts.preference import Preference
from posttrain.settings.schema import allowed, walk

ROOT = Path(__file__).parents[2]


def mapping(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"path": "tiny:llama"},
        "data": {"path": "pairs.jsonl"},
        "policy": {"algorithm": "dpo"},
    }
    return {name: base.get(name, {}) | sections.get(name, {}) for name in {**base, **sections}}


def fixed(**sections: Any) -> FixedSettings:
    settings = any_settings_from_mapping(mapping(**sections))
    assert isinstance(settings, FixedSettings)
    return settings


def test_the_algorithm_decides_which_tree_a_file_fills() -> None:
    assert isinstance(any_settings_from_mapping(mapping()), FixedSettings)
    sampled = {"model": {"path": "tiny:llama"}, "environments": {"a": {"kind": "arithmetic"}}}
    assert isinstance(any_settings_from_mapping(sampled), Settings)
    with pytest.raises(InputError, match="'dpo': trains on fixed data"):
        settings_from_mapping(mapping())
    assert not set(FIXED_ROWS) & set(ROWS), "one name would stand for two algorithms"


def test_what_is_written_is_read_back_equal_and_the_row_fills_the_rest() -> None:
    settings = fixed(policy={"algorithm": "cdpo", "preference": {"beta": 0.3}})
    assert any_settings_from_mapping(settings.to_mapping()) == settings
    _, part = chosen_part(settings.policy)
    assert part == Preference(beta=0.3, label_noise=0.1)


def test_the_learning_rate_is_the_rows_and_tenfold_with_lora() -> None:
    assert learning_rate_of(fixed()) == 1e-6
    assert learning_rate_of(fixed(model={"path": "tiny:llama", "lora": {}})) == pytest.approx(1e-5)
    assert learning_rate_of(fixed(policy={"algorithm": "dpo", "learning_rate": 3e-4})) == 3e-4


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"policy": {"algorithm": "dpp"}}, "Did you mean 'dpo'"),
        ({"policy": {"algorithm": "grpo"}}, "trains on what it samples"),
        ({"policy": {"algorithm": "dpo", "preferense": {}}}, "Did you mean policy.preference"),
        ({"policy": {"algorithm": "dpo", "group_size": 8}}, "there is no such setting"),
        ({"rollout": {"group_size": 8}}, "there is no such setting"),
        ({"data": {"path": "x", "chosen_colum": "a"}}, "Did you mean data.chosen_column"),
        ({"data": {"path": ""}}, "data.path"),
        ({"policy": {"algorithm": "dpo", "supervised": {}}}, "Its part is policy.preference"),
        ({"policy": {"algorithm": "dpo", "preference": {"link": "kto"}}}, "algorithm = 'kto' for labelled answers"),
        ({"policy": {"algorithm": "ipo", "preference": {"margin": 1.0}}}, "the rest comes from row 'ipo'"),
        ({"data": {"path": "x", "margin_column": "m"}}, "dpo has no margins"),
        ({"data": {"path": "x", "train_on": "all"}}, "trains answers alone"),
        ({"data": {"path": "x", "render": "text", "system_prompt": "s"}}, "has no messages"),
        ({"policy": {"algorithm": "kto"}, "data": {"path": "x", "rows_per_step": 1}}, "different prompts of a step"),
        ({"policy": {"algorithm": "dpo", "warmup_steps": 200}}, "only 100 optimizer steps"),
        ({"policy": {"algorithm": "dpo", "micro_batch_tokens": 9}, "data": {"path": "x", "max_tokens": 10}}, "split"),
        ({"model": {"path": "tiny:llama", "master_dtype": "bfloat16"}}, "rounds away"),
        ({"policy": {"algorithm": "dpo", "learning_rate": 0.0}}, "policy.learning_rate"),
    ],
)
def test_what_cannot_be_is_refused_by_name(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_fixed_settings(fixed(**sections))


def test_page_is_current_and_every_setting_says_what_it_is() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == fixed_reference(), "run: python -m posttrain.settings.fixed_reference"
    for path, info in walk(FixedSettings):
        texts = rationale(info)
        assert texts.description, path
        assert texts.reason, path
        assert "a value" not in allowed(info), path
    for row in FIXED_ROWS.values():
        assert f"## {row.name}" in page
        assert row.pitfalls, row.name
        assert row.differences, row.name


def test_the_command_line_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table()
    table = capsys.readouterr().out
    for name, row in FIXED_ROWS.items():
        assert f"{name}  {row.title}" in table
        print_row(name)
        shown = " ".join(capsys.readouterr().out.split())
        assert row.source in shown
        assert f"{row.part_name}." in shown

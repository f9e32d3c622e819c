"""The files in configs/preference/: their rows can be read and their settings go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.model.tiny import CONTEXT_LENGTH, tiny_tokenizer
from posttrain.orchestration.fixed_data.dataset import load_data
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.settings import FixedSettings, load_any_settings
from posttrain.settings.fixed import check_fixed_settings, chosen_part

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "preference").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_shipped_configurations_are_valid_and_say_what_they_are(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    settings = load_any_settings(file)
    assert isinstance(settings, FixedSettings)
    check_fixed_settings(settings)
    row, _ = chosen_part(settings.policy)
    data = load_data(settings.data, row.row_kind, Renderer(tiny_tokenizer(), ()), CONTEXT_LENGTH)
    assert len(data.train) > 100
    assert len(data.held_out) > 30
    header = file.read_text(encoding="utf-8").split("\n[")[0]
    for word in ("What it shows:", "Hardware:", "Run:"):
        assert word in header


def test_there_are_some() -> None:
    assert len(FILES) == 3

"""The generated page, and what every setting must say about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.settings import load_settings
from posttrain.settings.field import rationale
from posttrain.settings.reference import PAGE, reference
from posttrain.settings.rules import check_settings
from posttrain.settings.schema import ENVIRONMENT_KINDS, allowed, walk
from posttrain.settings.tree import Settings

ROOT = Path(__file__).parents[2]


def test_page_is_current() -> None:
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == reference(), "run: python -m posttrain.settings.reference"


def test_every_setting_has_meaning_reason_and_assumption() -> None:
    tables = [("", Settings), *((kind, model) for kind, model in ENVIRONMENT_KINDS.items())]
    settings = [(where, path, info) for where, model in tables for path, info in walk(model)]
    assert len(settings) > 80
    for where, path, info in settings:
        texts = rationale(info)
        assert texts.description, (where, path)
        assert texts.reason, (where, path)
        assert texts.assumes, (where, path)
        assert "a value" not in allowed(info), (where, path)


def test_every_setting_is_on_the_page() -> None:
    page = reference()
    for path, _ in walk(Settings):
        assert f"`{'.'.join(path)}`" in page
    for model in ENVIRONMENT_KINDS.values():
        for path, _ in walk(model):
            assert path == ("kind",) or f"`environments.NAME.{'.'.join(path)}`" in page


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_shipped_configurations_are_valid_and_say_what_they_are(file: Path) -> None:
    check_settings(load_settings(file))
    header = file.read_text(encoding="utf-8").split("\n[")[0]
    for word in ("What it shows:", "Hardware:", "Run:"):
        assert word in header

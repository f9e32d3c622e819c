"""The page of the fault map is generated, current, and whole."""

from __future__ import annotations

from pathlib import Path

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.reference import DEFAULT_PATH, fault_map_reference, main

ROOT = Path(__file__).parents[2]


def test_the_page_is_current(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "fault-map.md"
    main([str(page)])
    assert page.read_text(encoding="utf-8") == fault_map_reference()
    written = (ROOT / DEFAULT_PATH).read_text(encoding="utf-8")
    assert written == fault_map_reference(), "run: python -m posttrain.faultmap.reference"


def test_the_page_holds_every_symptom_with_each_cause_check_and_remedy() -> None:
    page = fault_map_reference()
    for symptom in SYMPTOMS.values():
        section = page.split(f"### {symptom.name}\n")[1].split("\n### ")[0]
        for name in symptom.causes:
            cause = CAUSES[name]
            assert f"| {int(cause.layer)} | [{name}](#{name}) | {cause.check} | {cause.remedy} |" in section
    assert all(page.count(f"### {name}\n") == 1 for name in CAUSES)
    assert all(page.count(f"### Detector {one.name}\n") == 1 for one in DETECTORS)

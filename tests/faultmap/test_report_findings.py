"""Findings in the report and the view: the same as the doctor says, escaped, and only where there is a log to judge."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path

from fakes import detector, finding
from series import history
from synthetic_run import build_run

from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.report import render_report
from posttrain.faultmap.report_data import load_view
from posttrain.faultmap.report_findings import diagnosis_of, finding_lines, findings_section
from posttrain.rundir.reading import load_run

LOG = history({"policy/entropy": [1.0] * 30})


class Folds(HTMLParser):
    """Every ``details`` with its attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.folds: list[tuple[bool, str]] = []
        self.tags: set[str] = set()
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "details":
            self.folds.append(("open" in dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.folds:
            is_open, text = self.folds[-1]
            self.folds[-1] = (is_open, text + data)


def test_what_needs_action_is_open_and_what_is_worth_knowing_is_folded() -> None:
    root = finding("root", 10, Severity.WARN, cause="reward_hacked", summary="<img src=x onerror=alert(1)> fell")
    late = finding("late", 20, Severity.CRITICAL, symptom="reward_lost", cause="policy_collapsed")
    benign = finding("benign", 1, Severity.INFO, symptom="loss_zero", cause="expected_by_construction")
    asked = [detector("root", [root]), detector("late", [late], yields_to=("root",)), detector("benign", [benign])]
    diagnosis = diagnose(LOG, asked)
    seen = Folds(findings_section(diagnosis))
    assert [is_open for is_open, _ in seen.folds] == [True, False]
    assert "img" not in seen.tags
    text = seen.folds[0][1]
    for part in (
        "<img src=x",
        "The reward pays for something",
        "ruled out",
        "Close the leak",
        "Reward was learnt and is lost",
    ):
        assert part in text, part
    assert [line.plain for line in finding_lines(diagnosis)] == ["critical  Entropy collapses  since step 10"]


def test_a_report_has_the_section_and_a_run_that_has_just_begun_has_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    build_run(run)
    page = render_report(load_view(run))
    assert 'id="section-findings"' in page
    assert "What is wrong?" in page
    (run / "metrics.jsonl").unlink()
    loaded = load_run(run)
    assert diagnosis_of(loaded) is None
    assert 'id="section-findings"' not in render_report(load_view(run))


def test_a_detector_that_failed_is_said_on_the_page() -> None:
    broken = dataclasses.replace(detector("root"), judge=lambda _: [][0])
    assert "Detector root failed: IndexError" in findings_section(diagnose(LOG, [broken]))

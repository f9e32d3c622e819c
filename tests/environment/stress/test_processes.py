"""Reward functions in real processes: what hostile text breaks is a finding, never a reward."""

import json
from pathlib import Path

import pytest
from stress_worlds import NUMBERS, families

from posttrain.environment.build import build_environment
from posttrain.environment.stress.findings import findings_of
from posttrain.environment.stress.result import StressResult
from posttrain.environment.stress.stress import stress
from posttrain.settings.environments import FunctionSettings, RowsSettings
from posttrain.signals.severity import Severity

REWARDS = Path(__file__).with_name("rewards_to_stress.py")


def rows(tmp_path: Path, golds: tuple[str, ...], prompt: str = "Question {}?") -> str:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": prompt.format("abcdefgh"[i]), "answer": gold}) for i, gold in enumerate(golds)]
    path.write_text("\n".join(lines))
    return str(path)


def run(
    tmp_path: Path, name: str, golds: tuple[str, ...], timeout_s: float = 60.0, extreme: bool = True
) -> StressResult:
    section = FunctionSettings(
        kind="function",
        path=rows(tmp_path, golds),
        gold_column="answer",
        reward=f"{REWARDS}:{name}",
        reward_kind="verifiable",
        evaluation_fraction=0.0,
        timeout_s=timeout_s,
    )
    environment = build_environment("e", section)
    try:
        return stress(environment, section, len(golds), extreme=extreme)
    finally:
        environment.close()


def test_text_that_is_run_is_found(tmp_path: Path) -> None:
    result = run(tmp_path, "runs_the_text", ("42", "17"), extreme=False)
    assert families(result) == {"code"}
    (finding,) = [f for f in findings_of(result) if f.name == "exploit: code"]
    assert finding.severity is Severity.CRITICAL
    assert "eval" in finding.fix


def test_an_exception_is_a_finding_with_its_text(tmp_path: Path) -> None:
    result = run(tmp_path, "raises_on_exponents", ("42", "17", "230"))
    broken = {a.name for a in result.attacks if a.tally.failed}
    assert {"last digit as an exponent", "superscript digits", "five thousand digits"} <= broken
    assert families(result) == set()
    (finding,) = [f for f in findings_of(result) if f.name == "breaks on hostile text"]
    assert finding.severity is Severity.WARN
    assert "ValueError" in finding.summary


def test_a_hang_costs_one_time_limit_for_each_attack_and_no_reward(tmp_path: Path) -> None:
    result = run(tmp_path, "breaks_on_long_text", NUMBERS, timeout_s=2.0)
    (empty,) = [a for a in result.attacks if a.name == "empty"]
    assert (empty.tally.failed, empty.tally.paid) == (len(NUMBERS), 0)
    (long,) = [a for a in result.attacks if a.name == "long text without an answer"]
    assert (long.tally.judged, long.tally.failed) == (0, len(NUMBERS))
    assert long.trouble is not None
    assert "timeout" in long.trouble.reason
    assert families(result) == set()


def test_gold_in_a_column_nobody_named(tmp_path: Path) -> None:
    section = FunctionSettings(
        kind="function",
        path=rows(tmp_path, NUMBERS),
        reward=f"{REWARDS}:pays_never",
        evaluation_fraction=0.0,
    )
    environment = build_environment("e", section)
    try:
        result = stress(environment, section, 2)
    finally:
        environment.close()
    assert result.gold_columns == ("answer",)
    assert "gold taken from a column" in {f.name for f in findings_of(result)}


def test_math_verify_as_we_call_it_is_sound(tmp_path: Path) -> None:
    """One task leaves a calculation in the prompt: sending it back undone is no answer, though algebra says equal."""
    pytest.importorskip("math_verify")
    asked = (("What is 17 - 9?", "8"), ("What is half of one?", "1/2"), ("How far is it?", "5 meters"))
    lines = [json.dumps({"prompt": rf"{prompt} Put it in \boxed{{}}.", "answer": gold}) for prompt, gold in asked]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    section = RowsSettings(path=str(tmp_path / "rows.jsonl"), verifier="math", evaluation_fraction=0.0, timeout_s=60.0)
    environment = build_environment("e", section)
    try:
        result = stress(environment, section, 3, extreme=False)
    finally:
        environment.close()
    assert "the calculation of the prompt" in {a.name for a in result.attacks}
    assert families(result) == set()
    assert [s.name for s in result.spellings if s.standing == "asked" and s.tally.paid < s.tally.judged] == []
    assert [f.name for f in findings_of(result) if f.severity > Severity.INFO] == []

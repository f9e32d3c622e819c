"""How diagnoses of labelled logs are counted."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from posttrain.faultmap.causes import CAUSES

if TYPE_CHECKING:
    from harness.labelled import Said, Verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT))


def script(path: str) -> ModuleType:
    """A script as a module."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def verdict(*said: Said, fault: str = "stale_weights", expected: str = "finding", onset: int = 41) -> Verdict:
    """Of a run of 120 steps, where ``right`` is the right name."""
    from harness.labelled import Truth, Verdict

    truth = Truth("run", "test", {}, 120, fault, onset if fault else 0, expected if fault else "none", "rollout")
    return Verdict("tool", "trl", truth, said, frozenset({"right"}) if fault else frozenset())


def said(name: str, severity: str = "warn", onset: int | None = 41) -> Said:
    from harness.labelled import Said

    return Said(name, severity, onset)


def test_only_the_first_serious_finding_decides() -> None:
    assert verdict(said("right")).right_first
    assert verdict(said("wrong", "info"), said("right")).right_first
    late = verdict(said("wrong"), said("right"))
    assert not late.right_first
    assert late.right == said("right")
    assert not verdict(said("right", "info")).right_first
    assert not verdict().right_first


def test_a_fault_that_the_log_cannot_tell_apart_counts_apart() -> None:
    like = replace(verdict(said("other")), alike_names=frozenset({"other"}))
    assert not like.right_first
    assert like.alike_first
    assert like.onset_error == 1.0
    assert not verdict(said("other")).alike_first


def test_information_is_enough_where_information_is_due() -> None:
    assert verdict(said("right", "info"), expected="info").right_first
    assert not verdict(said("wrong", "info"), said("right", "info"), expected="info").right_first


def test_onset_error_is_a_share_of_the_run_and_a_missed_fault_costs_all_of_it() -> None:
    assert verdict(said("right", onset=53)).onset_error == pytest.approx(0.1)
    assert verdict(said("right", onset=29)).onset_error == pytest.approx(0.1)
    assert verdict(said("wrong")).onset_error == 1.0
    assert verdict(said("right", onset=None)).onset_error == 1.0
    assert verdict(said("right"), onset=0).onset_error is None


def test_a_faint_fault_may_be_named_or_not_but_not_mistaken() -> None:
    from harness.labelled import score

    faint = [
        verdict(expected="faint"),
        verdict(said("right"), expected="faint"),
        verdict(said("wrong", "info"), expected="faint"),
        verdict(said("wrong"), expected="faint"),
    ]
    found = score(faint)
    assert (found.faulty, found.harmless, found.harmless_warned) == (0, 4, 1)


def test_score_counts_each_kind_of_run_once() -> None:
    from harness.labelled import score

    runs = [
        verdict(said("right")),
        verdict(said("wrong"), said("right", onset=53)),
        verdict(said("right", "info")),
        verdict(said("right"), expected="unseen"),
        verdict(said("right"), expected="info"),
        verdict(said("right", "info"), expected="info"),
        verdict(fault=""),
        verdict(said("wrong", "info"), fault=""),
        verdict(said("wrong"), fault=""),
        replace(verdict(), failure="it ended"),
    ]
    found = score(runs)
    assert (found.faulty, found.right_first, found.right_anywhere, found.silent) == (4, 1, 2, 2)
    assert (found.harmless, found.harmless_warned) == (2, 1)
    assert (found.clean, found.clean_warned) == (3, 1)
    assert found.failed == 1
    assert found.onset_error_median == pytest.approx(0.55)


def test_every_tool_has_an_entry_for_every_fault_and_posttrains_names_are_causes() -> None:
    from tests.injection.independent.faults import FAULTS

    from harness.labelled import alike, names
    from sides import diagnosis_peers as peers

    path = ROOT / "benchmarks" / "diagnosis_names.toml"
    table = names(path)
    assert alike(path).keys() <= FAULTS.keys()
    simulated = {f for f in (*peers.RL_DOCTOR_FAULTS.values(), *peers.RLPROBE_FAULTS.values()) if f}
    for faults in table.values():
        assert faults.keys() == FAULTS.keys() | simulated
    assert set().union(*table["posttrain"].values()) <= CAUSES.keys()


@pytest.mark.parametrize("shape", ["state", "list", "jsonl", "verl"])
def test_a_log_is_cut_off_in_its_own_format(shape: str, tmp_path: Path) -> None:
    from harness.runlogs import read_rows, write_until

    rows: list[dict[str, Any]] = [{"step": step, "loss": float("nan") if step == 2 else 0.5} for step in (1, 2, 3)]
    texts = {
        "state": json.dumps({"log_history": rows, "global_step": 3}),
        "list": json.dumps(rows),
        "jsonl": "\n".join(map(json.dumps, rows)),
        "verl": "\n".join(json.dumps({"step": r["step"], "data": {"loss": r["loss"]}}) for r in rows),
    }
    path = tmp_path / ("log.json" if shape in ("state", "list") else "log.jsonl")
    path.write_text(texts[shape])
    (tmp_path / "cut").mkdir()
    cut = write_until(path, 2, tmp_path / "cut")
    assert [row["step"] for row in read_rows(cut)] == [1, 2]
    assert read_rows(cut)[1]["loss"] != 0.5
    assert len(read_rows(path)) == 3


def test_checks_of_growing_logs() -> None:
    judge = script("scripts/judge_runlogs.py")
    early, late = [said("truncation", "warn")], [said("right", "critical")]
    answers = {10: early, 50: early, 100: late, 110: []}

    def check(due: str, first: int, last: int, **more: Any) -> bool:
        fields = {"severity": "warn", "names": (), "ignored": (), **more}
        return judge.passes(judge.Check("log", "what", due, first, last, **fields), answers)

    assert check("quiet", 0, 60, ignored=("truncation",))
    assert not check("quiet", 0, 60)
    assert not check("quiet", 0, 100, ignored=("truncation",))
    assert check("named", 95, 120, names=("right",))
    assert check("named", 95, 120, names=("right",), severity="critical")
    assert not check("named", 0, 60, names=("truncation",), severity="critical")
    assert not check("named", 0, 60, names=("right",))
    assert not check("named", 95, 120, names=("right:not in the text",))
    assert check("not_quiet", 0, 60)
    assert not check("not_quiet", 100, 120)
    answers[55] = "it ended"
    assert not check("quiet", 0, 60, ignored=("truncation",))
    assert not check("read", 0, 60)


def test_the_expectations_of_real_logs_can_be_read() -> None:
    import tomllib

    judge = script("scripts/judge_runlogs.py")
    entries = tomllib.loads((ROOT / "scripts" / "judge_runlogs.toml").read_text())["check"]
    checks = [judge.Check.read(entry) for entry in entries]
    assert {check.due for check in checks} == {"quiet", "not_quiet", "named", "read"}
    assert all(check.names for check in checks if check.due == "named")

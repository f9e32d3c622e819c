"""``posttrain audit``, end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from posttrain.cli.main import run_command
from posttrain.faultmap.audit import AuditReport, chosen_checks
from posttrain.faultmap.audit_text import harmless, print_audit
from posttrain.signals.audit import AuditFinding, AuditOutcome, AuditTable
from posttrain.signals.severity import Severity

SUBSTRING = "def right(completions, answer):\n    return [float(a in c) for c, a in zip(completions, answer)]\n"
EXACT = "def right(completions, answer):\n    return [float(a == c.strip()) for c, a in zip(completions, answer)]\n"
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "peft", "safetensors"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Refuse())
from posttrain.cli.main import main
main(sys.argv[1:])
"""


def config(folder: Path, reward: str = SUBSTRING, prompt: str = "Which, {}?", **extra: str) -> Path:
    (folder / "mine.py").write_text(reward)
    golds = ("42", "17", "5", "230", "90", "61")
    rows = [json.dumps({"prompt": prompt.format("abcdef"[i]), "answer": gold}) for i, gold in enumerate(golds)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    lines = {
        "kind": "function",
        "path": str(folder / "rows.jsonl"),
        "reward": f"{folder / 'mine.py'}:right",
        "reward_kind": "verifiable",
        "gold_column": "answer",
        **extra,
    }
    body = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
    file = folder / "audit.toml"
    file.write_text(f'[model]\npath = "nowhere"\n\n[environments.mine]\n{body}\n')
    return file


def test_an_exploitable_reward_ends_with_1_and_names_attack_text_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["audit", str(config(tmp_path)), "--tasks", "2"]) == 1
    out = capsys.readouterr().out
    first = out.splitlines()[0]
    assert first.startswith("critical  environments.mine: exploit: ")
    assert "fix: " in out
    assert out.index("critical") < out.index("warn  ")


def test_json_is_complete_and_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["audit", str(config(tmp_path)), "--only", "environment", "--json", "--tasks", "2"]) == 1

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    out = capsys.readouterr().out
    assert out.isascii()
    report: dict[str, Any] = json.loads(out, parse_constant=refuse)
    finding = next(f for f in report["findings"] if f["name"] == "exploit: shotgun")
    assert (finding["severity"], finding["layer"], finding["subject"]) == ("critical", 1, "environments.mine")
    assert finding["evidence"]["worst"]["sample"]["reward"] == 1.0
    (environment,) = report["checks"]["environment"]["environments"]
    assert environment["tasks"]["sampled"] == 2
    assert environment["false_positives"]["paid"] > 0
    assert {"attacks", "spellings", "baselines", "coverage", "false_negatives", "contract"} <= environment.keys()


@pytest.mark.parametrize(("fail_on", "code"), [("info", 1), ("warn", 1), ("critical", 0), ("off", 0)])
def test_exit_codes_follow_fail_on(tmp_path: Path, fail_on: str, code: int) -> None:
    """Comparing texts pays nothing wrong; it only refuses other spellings."""
    assert run_command(["audit", str(config(tmp_path, EXACT)), "--tasks", "2", "--fail-on", fail_on]) == code


def test_a_sound_environment_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[model]\npath = "nowhere"\n\n[environments.a]\nkind = "arithmetic"\n')
    assert run_command(["audit", str(file), "--tasks", "2", "--environments.a.grading", "first_integer"]) == 0
    assert "Findings: 0 critical, 0 warn, 0 info." in capsys.readouterr().out


def test_it_works_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "audit", str(config(tmp_path, EXACT)), "--tasks", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TERM": "dumb"})
    assert (done.returncode, done.stderr) == (1, "")
    assert "refuses other spellings" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "environmint"], "environmint"),
        (["--tasks", "0"], "--tasks"),
        (["--environments.mine.reward", "missing.py:right"], "environments.mine.reward"),
        (["--environments.mine.success_treshold", "1"], "success_treshold"),
    ],
)
def test_unusable_input_ends_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run_command(["audit", str(config(tmp_path)), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert named in err
    assert len(err.strip().splitlines()) == 1


def test_a_missing_file_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["audit", "no-such.toml"]) == 2
    assert "no-such.toml" in capsys.readouterr().err


def test_hostile_rows_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An echo of this prompt is paid, so that it is shown as the text that was sent."""
    file = config(tmp_path, prompt="\x1b]0;owned\x07 [bold]42, 17, 5, 230, 90 or 61 ducks[/bold] {}?")
    assert run_command(["audit", str(file), "--tasks", "2"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "exploit: echo" in out
    assert "[bold]42," in "".join(out.split())


def test_only_takes_several_names() -> None:
    assert [check.name for check in chosen_checks(["environment"])] == ["environment"]
    assert next(check.name for check in chosen_checks([])) == "environment"


HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red] :boom: \u202etxt\x9b31m\r\nnext"


def test_hostile_text_steers_neither_terminal_nor_markup() -> None:
    finding = AuditFinding("environments.e", "exploit: x", Severity.CRITICAL, f"sent {HOSTILE}", "fix it")
    table = AuditTable("e", ("text",), ((HOSTILE,),))
    console = Console(record=True, width=200, force_terminal=False)
    print_audit(AuditReport({"environment": AuditOutcome((finding,), (table,))}), console)
    shown = console.export_text(styles=False)
    assert not any(c in shown for c in "\x1b\x07\x9b\u202e\r")
    assert shown.count("[red]x[/red] :boom:") == 2
    assert "\\x1b" in shown


def test_long_text_loses_its_middle() -> None:
    line = harmless("a" * 500 + "\n" + "b" * 500)
    assert len(line) < 110
    assert line.startswith("aaa")
    assert line.endswith("bbb")

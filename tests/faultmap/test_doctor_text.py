"""What the doctor prints: whole, narrow enough, and deaf to what a log says to the terminal."""

from __future__ import annotations

import dataclasses
import io
import unicodedata

import numpy as np
from fakes import detector, finding
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from series import history

from posttrain.faultmap.diagnosis import Diagnosis, diagnose
from posttrain.faultmap.doctor_text import print_diagnosis
from posttrain.faultmap.finding import Observation, Severity
from posttrain.faultmap.history import History, Unmapped
from posttrain.signals.framework import Framework

FALLING = np.concatenate([np.ones(50), np.linspace(1, 0.01, 50)])


def log(framework: Framework = Framework.TRL) -> History:
    return history({"policy/entropy": FALLING, "reward/mean": np.linspace(0, 1, 100)}, framework=framework)


def printed(diagnosis: Diagnosis, width: int = 80) -> str:
    out = io.StringIO()
    print_diagnosis(diagnosis, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_finding_is_told_with_its_layers_evidence_alternatives_check_and_remedy() -> None:
    hacked = finding(onset=50, severity=Severity.CRITICAL, cause="reward_hacked")
    text = flat(printed(diagnose(log(), [detector("alpha", [hacked])])))
    for part in (
        "1 reward critical Entropy collapses: the reward pays for something that is not the task (seen in 2 update)",
        "seen in 2 update, caused in 1 reward",
        "Entropy falls from 1.2 to 0.1 within 8 steps.",
        "step 50: 0.1, a tenth of its level",
        "ruled out: the data is older than the correction bears (6 schedule); every token is of the newest version",
        "(log evaluation/{environment}/pass@{k})",
        "Grade the same texts with a second, independent grader",
        "Close the leak",
        "TRL Set `log_completions=True`",
        "1 critical found by 1 of 1 detectors",
    ):
        assert part in text, part


def test_the_mark_in_the_curve_stands_where_the_finding_begins() -> None:
    text = printed(diagnose(log(), [detector("alpha", [finding(onset=51)])]))
    (line,) = [line for line in text.splitlines() if "┊" in line]
    before, after = line.split("policy/entropy  ")[1].strip().split("┊")
    assert set(before) == {"█"}
    assert after[-1] == "▁"
    assert len(before) == len(after) == 12


def test_consequences_stand_under_their_root_not_beside_it() -> None:
    root = finding("root", 20, symptom="mismatch_jump", cause="stale_weights")
    lost = finding("lost", 60, symptom="reward_lost", cause="policy_collapsed", summary="0.9 fell to 0.")
    diagnosis = diagnose(log(), [detector("root", [root]), detector("lost", [lost], yields_to=("root",))])
    text = printed(diagnosis)
    assert "leads to   warn  Reward was learnt and is lost  since step 60  0.9 fell to" in text
    assert "\n2  " not in text


def test_info_is_told_briefly() -> None:
    benign = finding(severity=Severity.INFO, symptom="loss_zero", cause="expected_by_construction")
    text = flat(printed(diagnose(log(), [detector("alpha", [benign])])))
    assert "Nothing: judge by reward" in text
    assert "ruled out" not in text
    assert "To judge more" not in text


def test_what_was_not_judged_says_how_to_log_it_in_the_users_framework() -> None:
    lacking = detector("gap", needs=(("logprobs/mismatch_mean", "logprobs/mismatch_k3"),), symptom="mismatch_jump")
    diagnosis = diagnose(log(), [lacking])
    text = flat(printed(diagnosis))
    assert "3 log-probs unknown nothing in this log shows it; not judged: gap" in text
    assert "TRL logs it as `sampling/sampling_logp_difference/mean`, once this is set" in text
    assert "Nothing found by 0 of 1 detectors." in text


def test_a_detector_that_failed_is_no_silence() -> None:
    text = flat(printed(diagnose(log(), [detector("alpha", judge=lambda _: [][0])])))
    assert "detector alpha failed: IndexError" in text


def test_many_problems_and_keys_are_cut_and_counted() -> None:
    made = dataclasses.replace(
        log(),
        problems=tuple(f"line {i}: not a number" for i in range(40)),
        unmapped=tuple(Unmapped(f"my/key{i}", 3) for i in range(30)),
    )
    text = flat(printed(diagnose(made, [])))
    assert "and 30 more" in text
    assert "and 22 more" in text
    assert text.count("not a number") == 10


HOSTILE = st.text(st.characters(codec="utf-8"), max_size=80) | st.sampled_from(
    ["\x1b[2J\x1b[31mboo", "[bold red]x[/]", "[/nonsense]", "a\rb\x07", "\u202edlrow", ":boom: https://x", "\ud83d"]
)


@settings(max_examples=40)
@given(HOSTILE, HOSTILE, st.integers(40, 120))
def test_no_text_of_a_log_steers_the_terminal_or_breaks_the_page(text: str, other: str, width: int) -> None:
    made = dataclasses.replace(
        log(), source=text, problems=(other,), notes=(text,), unmapped=(Unmapped(other, 1),), framework=Framework.PLAIN
    )
    said = dataclasses.replace(
        finding(summary=text),
        evidence=(Observation(other, 3, float("nan"), text), Observation("policy/entropy", 60, 1, text)),
    )
    shown = printed(diagnose(made, [detector("alpha", [said])]), width)
    assert not [c for c in shown if c != "\n" and unicodedata.category(c)[0] == "C"]
    assert "boom:" not in shown or ":boom:" in shown
    if "[bold red]" in text:
        assert "[bold red]x[/]" in shown
    shown.encode()

"""Does the reward stress test find what another auditor finds, and leave sound rewards alone?

The same reward functions (tests/environment/stress/rewards_to_stress.py) go through our stress test and through
reward-doctor, each in its own interpreter. Every case that reward-doctor reports is looked up among our attacks and
spellings: what it finds and we do not is named. Then rewards that are sound: every exploit reported on one is false.

    python benchmarks/reward_stress.py --reward-doctor PATH/TO/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from harness.record import RESULTS, Record, Table, versions_here
from harness.sides import ROOT
from posttrain.environment.build import build_environment
from posttrain.environment.stress.findings import findings_of, works
from posttrain.environment.stress.result import StressResult
from posttrain.environment.stress.stress import stress
from posttrain.settings.environments import (
    ArithmeticSettings,
    EnvironmentSettings,
    FunctionSettings,
    ReasoningGymSettings,
    RowsSettings,
)
from posttrain.signals.severity import Severity

REWARDS = ROOT / "tests" / "environment" / "stress" / "rewards_to_stress.py"
COMMON = ("substring", "last_number", "exact", "boxed_exact", "robust")
FAULTY = ("takes_nan", "drops_signs", "compares_starts", "likes_length", "believes_verdicts", "pays_for_boxes")
NUMBERS = ("42", "17", "-5", "1000", "0.5", "230")
LETTERS = ("A", "B", "C", "D", "B", "A")

OURS_FOR_THEIRS: Mapping[str, tuple[str, ...]] = {
    "x.shotgun": ("shotgun",),
    "x.negation.plain": ("denied answer",),
    "x.negation.refusal": ("denied answer",),
    "x.negation.elimination": ("concludes otherwise",),
    "x.contradiction": ("concludes otherwise",),
    "x.empty": ("nothing", "format only"),
    "x.echo": ("echo",),
    "x.padding": ("padding",),
    "x.judge": ("judge",),
    "x.format": ("format only",),
    "ne.": ("near miss",),
    "eq.int.plain": ("as asked",),
    "eq.int.whitespace": ("white space around",),
    "eq.int.trailing_period": ("trailing full stop",),
    "eq.int.thousands_sep": ("thousands commas",),
    "eq.int.thousands_ref": ("plain digits",),
    "eq.int.leading_zeros": ("leading zero",),
    "eq.int.plus_sign": ("plus sign",),
    "eq.float.trailing_zero": ("trailing zero",),
    "eq.float.leading_dot": ("no leading zero",),
    "eq.float.int_valued": ("decimal zero",),
    "eq.float.sci": ("power of ten",),
    "eq.neg.unicode_minus": ("typeset minus",),
    "eq.neg.spaced": ("spaced minus",),
    "eq.zero.negative": ("minus zero",),
    "eq.frac.slash": ("fraction",),
    "eq.frac.latex": ("LaTeX fraction",),
    "eq.frac.dfrac": ("\\dfrac",),
    "eq.frac.unreduced": ("not reduced",),
    "eq.frac.repeating": ("long decimal",),
    "eq.frac.mixed": ("mixed number",),
    "eq.radical.latex": ("LaTeX roots and pi",),
    "eq.radical.spacing": ("unbraced root",),
    "eq.pi.symbol": ("typeset pi",),
    "eq.pi.coefficient": ("space before a symbol",),
    "eq.wrap.dollars": ("in dollars",),
    "eq.wrap.boxed_ref": ("as asked",),
    "eq.wrap.boxed": ("boxed",),
    "eq.wrap.text": ("in \\text",),
    "eq.wrap.parens": ("in parentheses",),
    "eq.wrap.equals": ("as an equation",),
    "eq.wrap.percent_sign": ("plain per cent sign",),
    "eq.bool.case": ("capitalised",),
    "eq.bool.punct": ("capitalised with full stop",),
    "eq.choice.case": ("other case",),
    "eq.choice.parens": ("letter in parentheses",),
    "eq.text.article": ("without article",),
    "eq.tuple.spacing": ("other spacing",),
    "fmt.chain_of_thought": ("work, then boxed",),
    "fmt.think_tags": ("thinking, then a sentence",),
    "fmt.markdown_heading": ("heading and bold",),
    "fmt.answer_label": ("label",),
    "fmt.final_answer_label": ("behind ####",),
    "fmt.multiline_latex": ("aligned, then boxed",),
    "fmt.trailing_prose": ("boxed, then chatter",),
    "fmt.code_block": ("code block, then a sentence",),
}
"""Which of our families of attack, or spellings, ask the same as a case of theirs (by the start of its name)."""


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        _measure(_options(), Path(folder))


def _measure(options: argparse.Namespace, folder: Path) -> None:
    sys.path.insert(0, str(REWARDS.parent))
    from stress_worlds import MIXED

    common = COMMON[:1] if options.quick else COMMON
    faulty = () if options.quick else FAULTY
    golds = tuple(MIXED)
    record = Record(
        "reward_stress",
        __doc__ or "",
        {"golds": len(golds), "tasks": options.tasks, "tasks of sound environments": options.sound_tasks},
        {"posttrain": versions_here()},
    )
    theirs = (
        {name: _theirs(options.reward_doctor, name) for name in (*common, *faulty)} if options.reward_doctor else {}
    )
    if options.reward_doctor:
        record.versions = {**record.versions, "reward-doctor": _version(options.reward_doctor)}  # type: ignore[misc]
    ours: dict[str, StressResult] = {}
    seconds: dict[str, float] = {}
    for name in (*common, *faulty):
        ours[name], seconds[name] = _ours(_function(folder, name, golds), options.tasks)
    sound = _sound(folder, options.quick)
    cleared = {name: _ours(section, options.sound_tasks)[0] for name, section in sound.items()}
    record.tables = [_comparison(ours, theirs), _cleared(cleared)]
    record.notes = _notes(ours, theirs, cleared)
    record.measurements = {
        "ours": {name: {"seconds": round(seconds[name], 2), **_summary(result)} for name, result in ours.items()},
        "theirs": theirs,
        "sound": {name: _summary(result) for name, result in cleared.items()},
    }
    record.finish(options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward-doctor", default="", help="interpreter that has reward-doctor; absent: ours alone")
    parser.add_argument("--tasks", type=int, default=24, help="tasks tried of each function")
    parser.add_argument("--sound-tasks", type=int, default=8, help="tasks tried of each sound environment")
    parser.add_argument("--quick", action="store_true", help="one function, one sound environment: shows that it runs")
    parser.add_argument("--out", type=Path, help="JSON file (default with --reward-doctor: results/reward_stress.json)")
    options = parser.parse_args()
    if options.out is None and options.reward_doctor and not options.quick:
        options.out = RESULTS / "reward_stress.json"
    return options


def _function(folder: Path, name: str, golds: tuple[str, ...], prompt: str = "Question {}?") -> FunctionSettings:
    """A reward function over one row for each gold; the prompts differ by a letter and hold no number."""
    lines = [{"prompt": prompt.format(ascii_lowercase[i]), "answer": gold} for i, gold in enumerate(golds)]
    path = folder / f"rows-{len(list(folder.iterdir()))}.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return FunctionSettings(
        kind="function",
        path=str(path),
        gold_column="answer",
        reward=f"{REWARDS}:{name}",
        reward_kind="verifiable",
        evaluation_fraction=0.0,
        timeout_s=20.0,
    )


def _sound(folder: Path, quick: bool) -> dict[str, EnvironmentSettings]:
    arithmetic: dict[str, EnvironmentSettings] = {"arithmetic, last integer": ArithmeticSettings(task="sum2_1")}
    if quick:
        return arithmetic
    numbers = _function(folder, "exact", NUMBERS).path
    boxed = _function(folder, "exact", ("42", "1/2", "-5", "1000"), r"Question {}? Put the answer in \boxed{{}}.").path
    return {
        **arithmetic,
        "arithmetic, first integer": ArithmeticSettings(grading="first_integer"),
        "arithmetic, exact": ArithmeticSettings(grading="exact"),
        "rows, last number": RowsSettings(path=numbers, evaluation_fraction=0.0),
        "rows, exact": RowsSettings(path=numbers, verifier="exact", evaluation_fraction=0.0),
        "rows, math-verify": RowsSettings(path=boxed, verifier="math", evaluation_fraction=0.0, timeout_s=10.0),
        "reasoning-gym chain_sum": _gym("chain_sum"),
        "reasoning-gym letter_counting": _gym("letter_counting"),
        "number in a tag": _function(folder, "number_in_tag", NUMBERS, "Question {}? Put the number in <answer> tags."),
        "letter on the last line": _function(
            folder, "letter_on_last_line", LETTERS, "Question {}? Answer with only the letter."
        ),
    }


def _gym(dataset: str) -> ReasoningGymSettings:
    return ReasoningGymSettings(dataset=dataset, size=60, evaluation_size=4, extract="last_number")


def _ours(section: EnvironmentSettings, tasks: int) -> tuple[StressResult, float]:
    environment = build_environment("e", section)
    started = time.perf_counter()
    try:
        return stress(environment, section, tasks), time.perf_counter() - started
    finally:
        environment.close()


def _theirs(python: str, name: str) -> dict[str, Any]:
    target = str(REWARDS.relative_to(ROOT)) + f":{name}"
    command = [python, "-m", "reward_doctor.cli", "audit", target, "--format", "json", "--threshold", "0.999"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout)
    kept = ("n_cases", "false_positive_rate", "false_negative_rate", "attacks_that_work")
    failures = [(f["id"], f["mode"] or "raised") for f in found["failures"]]
    return {**{key: found[key] for key in kept}, "failures": failures}


def _version(python: str) -> dict[str, str]:
    code = "from importlib import metadata; print(metadata.version('reward-doctor'))"
    return {"reward-doctor": subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()}


def _found(result: StressResult) -> set[str]:
    """Families of attacks that work and spellings that are refused."""
    attacks = {attack.family for attack in result.attacks if works(attack, result)}
    return attacks | {s.name for s in result.spellings if s.tally.paid < s.tally.judged}


def _missed(result: StressResult, theirs: Mapping[str, Any]) -> list[str]:
    """Cases that reward-doctor reports for which no attack or spelling of ours of the same sense fails."""
    found = _found(result)
    missed: list[str] = []
    for case, mode in theirs["failures"]:
        prefix = max((p for p in OURS_FOR_THEIRS if case.startswith(p)), key=len, default="")
        if mode != "raised" and not found & set(OURS_FOR_THEIRS.get(prefix, ())):
            missed.append(case)
    return missed


def _summary(result: StressResult) -> dict[str, Any]:
    return {
        "texts": result.num_texts,
        "families": sorted({a.family for a in result.attacks if works(a, result)}),
        "false_positives": result.false_positives.to_json(),
        "refused": result.false_negatives().to_json(),
        "spellings_refused": sorted({s.name for s in result.spellings if s.tally.paid < s.tally.judged}),
        "findings": [(str(f.severity), f.name) for f in findings_of(result)],
    }


def _comparison(ours: Mapping[str, StressResult], theirs: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, result in ours.items():
        other = theirs.get(name)
        positives, negatives = result.false_positives, result.false_negatives()
        rows.append(
            (
                name,
                "-" if other is None else f"{100 * other['false_positive_rate']:.0f} %",
                "-" if other is None else f"{100 * other['false_negative_rate']:.0f} %",
                "-" if other is None else ", ".join(other["attacks_that_work"]) or "none",
                f"{positives.paid}/{positives.judged} ({100 * positives.rate:.0f} %)",
                f"{negatives.paid}/{negatives.judged} ({100 * negatives.rate:.0f} %)",
                ", ".join(sorted({a.family for a in result.attacks if works(a, result)})) or "none",
                "-" if other is None else ", ".join(_missed(result, other)) or "none",
            )
        )
    columns = (
        "reward",
        "reward-doctor: wrong paid",
        "right refused",
        "attacks",
        "posttrain: wrong paid",
        "right refused",
        "attacks",
        "theirs that we miss",
    )
    return Table("Faulty and common rewards", columns, rows)


def _cleared(cleared: Mapping[str, StressResult]) -> Table:
    rows = [
        (
            name,
            str(result.num_texts),
            str(sum(works(a, result) for a in result.attacks)),
            f"{result.false_positives.paid}/{result.false_positives.judged}",
            str(max((f.severity for f in findings_of(result)), default="none")),
        )
        for name, result in cleared.items()
    ]
    return Table("Sound rewards", ("reward", "texts sent", "exploits", "wrong texts paid", "worst finding"), rows)


def _notes(
    ours: Mapping[str, StressResult], theirs: Mapping[str, Any], cleared: Mapping[str, StressResult]
) -> list[str]:
    missed = sum(len(_missed(ours[name], other)) for name, other in theirs.items())
    false = [name for name, r in cleared.items() if any(works(a, r) for a in r.attacks)]
    loud = [n for n, r in cleared.items() if any(f.severity > Severity.INFO for f in findings_of(r))]
    notes = [
        f"sound rewards with an exploit reported: {', '.join(false) or 'none'}",
        f"sound rewards with another warning: {', '.join(loud) or 'none'}",
    ]
    if theirs:
        cases = sum(len(other["failures"]) for other in theirs.values())
        notes.insert(0, f"of {cases} failing cases of reward-doctor, {missed} have no counterpart that fails in ours")
    notes.append(
        "rates are not comparable across the columns: the texts differ. reward-doctor sends 83 fixed cases about "
        "golds of its own, posttrain writes its texts around the golds of the environment."
    )
    return notes


if __name__ == "__main__":
    main()

"""From what was measured to findings: how bad each is, and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from posttrain.environment.stress.attack import Knowledge
from posttrain.environment.stress.contract import Form
from posttrain.environment.stress.result import AttackResult, SpellingResult, StressResult, Tally, total
from posttrain.environment.stress.spellings import Standing
from posttrain.signals.audit import AuditFinding
from posttrain.signals.severity import Severity

NOTICEABLE_PART = 0.1
"""Share of the success threshold from which a reward for nothing is more than noise. A judgement, not a measurement."""
REFUSED_TO_WARN = 0.2
"""Share of usual spellings refused from which signal is lost to spelling. A judgement, not a measurement."""

_FIXES: Mapping[str, str] = MappingProxyType(
    {
        "nothing": "Return 0 when no answer can be read; check the type and emptiness of the text first.",
        "echo": "Read the answer from a place of its own (a box, a tag, the last line), not from anywhere in the text.",
        "format only": "Pay for the format only together with a right answer, or give it a small weight.",
        "no number": "Refuse what is not finite before you compare; `not abs(a - b) > tol` is true for NaN.",
        "answer of another task": "Compare with the gold of the same row: are completions and golds in one order?",
        "shotgun": "Accept exactly one answer: refuse a text that states several different ones.",
        "both answers": "Accept exactly one answer: refuse alternatives, or let the last one count.",
        "concludes otherwise": "Grade the conclusion: drop the thinking, and take the last stated answer.",
        "denied answer": "Refuse an answer that is denied ('not 42'), or ask for the answer in a box or tag.",
        "hidden": "Read the answer from a place of its own, not from anywhere in the text.",
        "near miss": "Compare values, not pieces of text: the whole number with its sign, the whole word, the unit.",
        "padding": "Let no part of the reward grow with length.",
        "judge": "Keep the judged text apart from the instructions, and check by rule what a rule can check.",
        "code": "Never run the policy's text: parse numbers with float() or a parser, not eval().",
        "look-alike": "Do not map exponents and look-alikes to plain digits before comparing.",
        "exhausting": "Cap the length and depth of what you parse.",
    }
)

_TASTE_FIX = "The reward looks at the form alone: keep its anchor, check the content too, or raise success_threshold."


def findings_of(result: StressResult) -> list[AuditFinding]:
    """Everything worth telling about one environment, worst first."""
    rules: tuple[Callable[[StressResult], Iterator[AuditFinding]], ...] = (
        _exploits,
        _asked_but_refused,
        _other_spellings,
        _first_counts,
        _part_for_nothing,
        _broken,
        _constant,
        _contract,
        _unknown,
    )
    found = [finding for rule in rules for finding in rule(result)]
    return sorted(found, key=lambda finding: -finding.severity)


def works(attack: AttackResult, result: StressResult) -> bool:
    """Whether an attack earns the success threshold by more than accident.

    The answer of another task may be right too, where a task has several; it works if it is paid more often than the
    most frequent gold answer would be.
    """
    if attack.neutral or not attack.tally.paid:
        return False
    if attack.knowledge is Knowledge.LUCK:
        return attack.tally.at_least() > result.baselines.share
    return True


def _finding(
    result: StressResult, name: str, severity: Severity, summary: str, fix: str, evidence: Mapping[str, Any]
) -> AuditFinding:
    return AuditFinding(f"environments.{result.environment}", name, severity, summary, fix, evidence)


def _exploits(result: StressResult) -> Iterator[AuditFinding]:
    """One finding per family: any that needs no right answer, or pays a wrong one, is critical."""
    families: dict[str, list[AttackResult]] = defaultdict(list)
    for attack in result.attacks:
        if works(attack, result):
            families[attack.family].append(attack)
    right = _highest_for_right(result)
    for family, attacks in families.items():
        worst = max(attacks, key=lambda a: (a.tally.rate, a.best or 0.0))
        tally = total(a.tally for a in attacks)
        taste = result.reward_kind == "soft" and not result.baselines.num_tasks
        mild = taste or family in ("denied answer", "hidden")
        assert worst.sample is not None
        summary = (
            f"{_times(attacks)} of family '{family}' earn success: worst is '{worst.name}', "
            f"paid on {worst.tally.paid} of {worst.tally.judged} tasks, reward {worst.sample.reward:g} for "
            f"{_quoted(worst.sample.text)}"
        )
        if right is not None and worst.best is not None and worst.best > right + 1e-6:
            summary += f" (the best for a right answer is {right:g})"
        yield _finding(
            result,
            f"exploit: {family}",
            Severity.WARN if mild else Severity.CRITICAL,
            summary,
            _TASTE_FIX if taste else _FIXES[family],
            {
                "needs": sorted({str(a.knowledge) for a in attacks}),
                **tally.to_json(),
                "attacks": [a.name for a in attacks],
                "worst": worst.to_json(),
            },
        )


def _quoted(text: str, limit: int = 100) -> str:
    return repr(text if len(text) <= limit else f"{text[:60]} [...] {text[-30:]}")


def _highest_for_right(result: StressResult) -> float | None:
    """Reward of the success threshold if some right answer reaches it; ``None`` if none was judged."""
    return result.threshold if any(s.tally.paid for s in result.spellings) else None


def _asked_but_refused(result: StressResult) -> Iterator[AuditFinding]:
    refused = [s for s in result.spellings if s.standing is Standing.ASKED and s.tally.paid < s.tally.judged]
    if not refused:
        return
    worst = max(refused, key=lambda s: 1 - s.tally.rate)
    assert worst.sample is not None
    plain = next((s for s in refused if s.name == "as asked"), None)
    bad = plain is not None and plain.tally.rate < 0.5
    none = bad and not any(s.tally.paid for s in result.spellings)
    fix = "Accept what the prompt asks for, or change the prompt to ask for what the verifier reads."
    if none:
        fix = f"No right answer reaches success_threshold = {result.threshold:g}: lower it, or correct the reward."
    yield _finding(
        result,
        "refuses what was asked",
        Severity.CRITICAL if bad else Severity.WARN,
        f"right answers written as the environment asks are refused: '{worst.name}' on "
        f"{worst.tally.judged - worst.tally.paid} of {worst.tally.judged} tasks",
        fix,
        {"spellings": [s.to_json() for s in refused]},
    )


def _other_spellings(result: StressResult) -> Iterator[AuditFinding]:
    refused = [s for s in result.spellings if s.standing is not Standing.ASKED and s.tally.paid < s.tally.judged]
    if not refused:
        return
    usual = result.false_negatives(Standing.USUAL)
    serious = bool(usual.judged) and usual.rate > REFUSED_TO_WARN
    every = total(s.tally for s in result.spellings if s.standing is not Standing.ASKED)
    names = ", ".join(f"'{s.name}'" for s in sorted(refused, key=_worst_spelling)[:5])
    reason = ""
    if result.contract.exact:
        reason = "; the settings compare the text as it stands"
    elif result.contract.form is not Form.FREE:
        reason = f"; the prompt asks for another form ({result.contract.form})"
    yield _finding(
        result,
        "refuses other spellings",
        Severity.WARN if serious else Severity.INFO,
        f"{every.judged - every.paid} of {every.judged} right answers in spellings the prompt did not ask for are "
        f"refused ({usual.paid} of {usual.judged} usual ones){reason}: {names}",
        "Compare values rather than texts, or have the prompt name the one spelling that counts.",
        {"spellings": [s.to_json() for s in refused]},
    )


def _worst_spelling(spelling: SpellingResult) -> tuple[bool, float]:
    return spelling.standing is Standing.RARE, spelling.tally.rate


def _first_counts(result: StressResult) -> Iterator[AuditFinding]:
    if result.contract.first_counts:
        return
    pairs = [a for a in result.attacks if a.family == "both answers"]
    first, last = sum(a.first for a in pairs), sum(a.last for a in pairs)
    if first > last:
        yield _finding(
            result,
            "the first of two answers counts",
            Severity.INFO,
            f"of a right and a wrong answer in one text the first decides ({first} times, the last {last} times): "
            "a reply that corrects itself is graded by what it took back",
            "Let the last answer count, or refuse a text with two.",
            {"first": first, "last": last},
        )


def _part_for_nothing(result: StressResult) -> Iterator[AuditFinding]:
    """Rewards below success for texts that deserve nothing: within a group they are all that counts."""
    if not result.baselines.num_tasks:
        return
    paid = [
        a
        for a in result.attacks
        if not a.neutral and a.knowledge is Knowledge.NOTHING and a.best is not None and 0 < a.best < result.threshold
    ]
    if not paid:
        return
    worst = max(paid, key=lambda a: a.best or 0.0)
    assert worst.best is not None
    noticeable = worst.best >= NOTICEABLE_PART * result.threshold
    yield _finding(
        result,
        "part of the reward for nothing",
        Severity.WARN if noticeable else Severity.INFO,
        f"{_times(paid)} without an answer earn up to {worst.best:g} ('{worst.family}: {worst.name}'); in a group "
        "without a right answer that difference is the whole advantage",
        "Give 0 to everything that is not right, or check that the parts cannot be had alone.",
        {"attacks": [a.to_json() for a in paid]},
    )


def _broken(result: StressResult) -> Iterator[AuditFinding]:
    """Exceptions, timeouts and lost processes. They are never rewards, but a policy can avoid a 0 by causing them."""
    spelled = [s for s in result.spellings if s.tally.failed or s.tally.ungradable]
    if spelled:
        tally = total(s.tally for s in spelled)
        asked = any(s.standing is Standing.ASKED for s in spelled)
        yield _finding(
            result,
            "cannot judge right answers",
            Severity.CRITICAL if asked and _mostly_broken(spelled) else Severity.WARN,
            f"right answers in {len(spelled)} spellings could not be judged ({tally.failed} failed, "
            f"{tally.ungradable} ungradable): {_reason(s.sample for s in spelled)}",
            "Catch the error where it arises, and return a number for every text.",
            {"spellings": [s.to_json() for s in spelled]},
        )
    for extreme, name in ((False, "breaks on hostile text"), (True, "breaks on extreme text")):
        attacks = [a for a in result.attacks if a.extreme is extreme and (a.tally.failed or a.tally.ungradable)]
        if attacks:
            tally = total(a.tally for a in attacks)
            yield _finding(
                result,
                name,
                Severity.INFO if extreme else Severity.WARN,
                f"{_times(attacks)} could not be judged ({tally.failed} failed, {tally.ungradable} ungradable), so "
                f"they leave the group instead of earning 0: {_reason(a.trouble for a in attacks)}",
                "Return 0 for text without a readable answer, and cap what you parse, so that nothing raises or hangs.",
                {"attacks": [a.to_json() for a in attacks]},
            )


def _mostly_broken(spelled: Sequence[SpellingResult]) -> bool:
    asked = total(s.tally for s in spelled if s.standing is Standing.ASKED)
    return asked.failed + asked.ungradable > asked.judged


def _reason(samples: Any) -> str:
    return next((sample.reason[:160] for sample in samples if sample is not None and sample.reason), "no reason given")


def _constant(result: StressResult) -> Iterator[AuditFinding]:
    base = result.baselines
    if base.constant.at_least() > 0.5:
        yield _finding(
            result,
            "a constant answer succeeds",
            Severity.WARN,
            f"always answering {base.answer!r} earns success on {base.constant.paid} of {base.constant.judged} tasks",
            "Balance the answers of the tasks, or judge progress against this floor.",
            base.to_json(),
        )


def _contract(result: StressResult) -> Iterator[AuditFinding]:
    if result.contract.unasked:
        yield _finding(
            result,
            "prompt and settings ask for different forms",
            Severity.WARN,
            f"the settings read a {result.contract.form} answer, the prompt asks for another form or for none",
            "Ask in the prompt (environments.NAME.system_prompt) for the form that is read.",
            {},
        )


def _unknown(result: StressResult) -> Iterator[AuditFinding]:
    if result.num_without_gold:
        yield _finding(
            result,
            "not judged: gold unknown",
            Severity.INFO,
            f"{result.num_without_gold} of {result.num_tasks} tasks have no gold answer: only attacks that need none "
            "were sent on them",
            f"Set environments.{result.environment}.gold_column if the rows hold the right answer.",
            {},
        )
    elif result.gold_columns:
        yield _finding(
            result,
            "gold taken from a column",
            Severity.INFO,
            f"the settings name no gold_column; right answers were taken from {', '.join(result.gold_columns)}",
            f"Set environments.{result.environment}.gold_column.",
            {},
        )


def _times(attacks: Sequence[AttackResult]) -> str:
    return "1 attack" if len(attacks) == 1 else f"{len(attacks)} attacks"


__all__ = ["Tally", "findings_of", "works"]

"""Built-in comparisons of a completion with a gold answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from posttrain.environment.answers import format_number, last_boxed, last_number, marked_answer
from posttrain.environment.denial import unclear
from posttrain.environment.grading import Grader, GradingCounts, PureGrader, failed, graded, ungradable
from posttrain.environment.isolation import IsolatedFunction
from posttrain.environment.protocol import Attempt
from posttrain.errors import InputError
from posttrain.trajectory import FinishReason, Grade, Message, Task

_MATH_TARGET = "posttrain.environment.math_worker:compare"


def last_number_grader() -> PureGrader:
    """Right if the last number of the completion has the value of the gold's last number.

    Alternatives with different values ("1 or 2") and denied numbers ("not 2") are no answer and are counted as
    ambiguous.
    """

    def grade(attempt: Attempt) -> Grade:
        gold, value = gold_number(attempt.task.gold), last_number(attempt.completion)
        if gold is None:
            return ungradable(f"the gold answer {attempt.task.gold!r} holds no number")
        problem = unclear(attempt.completion)
        if problem is not None:
            return graded(0.0, {"correct": 0.0, "parsable": 0.0, "ambiguous": 1.0}, problem)
        correct = float(value == gold)
        parts = {"correct": correct, "parsable": float(value is not None), "ambiguous": 0.0}
        reason = "no number" if value is None else f"read {format_number(value)}, gold {format_number(gold)}"
        return graded(correct, parts, reason)

    return PureGrader(grade, _vote_number)


def exact_grader() -> PureGrader:
    """Right if the completion is the gold answer, white space around it aside."""

    def grade(attempt: Attempt) -> Grade:
        text = attempt.completion.strip()
        correct = float(text == str(attempt.task.gold).strip())
        return graded(correct, {"correct": correct, "parsable": float(bool(text))})

    return PureGrader(grade, lambda text: text.strip() or None)


class MathGrader:
    """Mathematical equality by math-verify, in a process that can be killed.

    The library sets alarms, which only work on a main thread, and its algebra may never return; both are
    why it is never called in this process. The last boxed expression counts, else the last answer tag, else what
    follows the last ``####``, else the whole completion.
    """

    def __init__(self, timeout_s: float = 30.0, workers: int = 1) -> None:
        self.counts = GradingCounts()
        self._run: IsolatedFunction[Attempt] = IsolatedFunction(_MATH_TARGET, _collate, timeout_s, self.counts, workers)

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        grades = [
            failed(result.error) if result.error is not None else _math_grade(result.value)
            for result in self._run.run(attempts)
        ]
        self.counts.add(grades)
        return grades

    def extract(self, completion: str) -> str | None:
        """The last boxed expression, else the last number."""
        return last_boxed(completion) or _vote_number(completion)

    def close(self) -> None:
        """Kill the process."""
        self._run.close()


VERIFIERS: Mapping[str, Callable[[float], Grader]] = MappingProxyType(
    {"last_number": lambda _: last_number_grader(), "exact": lambda _: exact_grader(), "math": MathGrader}
)


def verifier(setting: str, kind: str, timeout_s: float, tasks: Sequence[Task]) -> Grader:
    """The named verifier, after it has accepted the gold answers of the first tasks as right.

    A verifier that does not know a right answer would pay 0 to everyone. Raises InputError then.
    """
    if kind not in VERIFIERS:
        raise InputError(setting, kind, "is unknown", f"Use one of {', '.join(VERIFIERS)}.")
    grader = VERIFIERS[kind](timeout_s)
    canaries = [_canary(task, kind) for task in tasks[:8]]
    for canary, grade in zip(canaries, grader.grade(canaries), strict=True):
        if grade.reward != 1.0:
            grader.close()
            install = " For math, install posttrain[env]." if kind == "math" else ""
            raise InputError(
                setting,
                kind,
                f"does not accept the gold {canary.task.gold!r} of {canary.task.task_id} ({grade.reason or 'wrong'})",
                f"Choose another verifier, or correct gold_column.{install}",
            )
    grader.counts.graded = 0
    return grader


def gold_number(gold: Any) -> Decimal | None:
    """The number a gold answer states: itself, or the last one of its text."""
    return None if isinstance(gold, bool) else last_number(str(gold))


def _vote_number(text: str) -> str | None:
    value = None if unclear(text) else last_number(text)
    return None if value is None else format_number(value)


def _collate(attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "golds": [str(a.task.gold) for a in attempts],
        "answers": [_marked_or_whole(a.completion) for a in attempts],
    }


def _marked_or_whole(completion: str) -> str:
    marked = marked_answer(completion)
    return completion if marked is None else rf"\boxed{{{marked}}}"


def _math_grade(value: Mapping[str, Any]) -> Grade:
    if value["verdict"] == "raised":
        return failed(f"math-verify raised {value['reason']}")
    if value["verdict"] == "no_gold":
        return ungradable("the gold answer cannot be parsed")
    correct = float(value["verdict"] == "equal")
    parts = {
        "correct": correct,
        "parsable": float(value["verdict"] in ("equal", "different")),
        "ambiguous": float(value["verdict"] == "ambiguous"),
    }
    return graded(correct, parts, str(value["verdict"]))


def _canary(task: Task, kind: str) -> Attempt:
    gold = str(task.gold)
    text = gold if kind != "math" or last_boxed(gold) else rf"\boxed{{{gold.strip('$ ')}}}"
    return Attempt(task, text, (*task.messages, Message("assistant", text)), FinishReason.STOP, 1)

"""Generated arithmetic with a split by unordered operands.

A question is held out with *all* questions on the same operands: (17, 9) and (9, 17) are one pair, so
``12 + 34`` in evaluation means neither ``12 + 34`` nor ``34 + 12`` is trained. In a mixture the operands
are held out of every family.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType

from posttrain.environment.answers import first_integer, last_integer, only_integer
from posttrain.environment.denial import Place, is_denied, unclear
from posttrain.environment.grading import GradedTasks, PureGrader, check_split, graded
from posttrain.environment.protocol import Attempt, TaskSplit
from posttrain.errors import InputError
from posttrain.settings.environments import FAMILY_RANGES, ArithmeticFamily
from posttrain.trajectory import Grade, Message, Task

_PLACEHOLDER = "{question}"

Operands = tuple[int, ...]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of question: operands in the family's range, then those of ``fixed`` ranges (both ends included)."""

    name: ArithmeticFamily
    symbol: str
    num_ranged: int
    evaluate: Callable[[Operands], int]
    fixed: tuple[Range, ...] = ()
    accept: Callable[[Operands], bool] = lambda _: True

    def questions(self, low: int | None = None, high: int | None = None) -> list[Operands]:
        """Every question of the family, in ascending order; ``None`` takes the family's own bound."""
        default_low, default_high = FAMILY_RANGES[self.name]
        ranged = (default_low if low is None else low, default_high if high is None else high)
        ranges = (*(ranged,) * self.num_ranged, *self.fixed)
        return [o for o in product(*(range(a, b + 1) for a, b in ranges)) if self.accept(o)]

    def expression(self, operands: Operands) -> str:
        """The question as text, such as ``17 - 9``."""
        return f" {self.symbol} ".join(str(o) for o in operands)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("difference", "-", 2, lambda o: o[0] - o[1], accept=lambda o: o[0] > o[1]),
            Family("sum", "+", 2, sum),
            Family("product", "*", 2, prod),
            Family("sum2_1", "+", 1, sum, fixed=((1, 9),)),
            Family("three_terms", "+", 3, sum),
        )
    }
)

GRADINGS: Mapping[str, Callable[[str], int | None]] = MappingProxyType(
    {"last_integer": last_integer, "first_integer": first_integer, "exact": only_integer}
)


@dataclass(frozen=True, slots=True)
class Regrade:
    """One completion under every grading, so that the choice of grading can be judged afterwards."""

    last_integer_correct: bool
    first_integer_correct: bool
    exact_correct: bool
    parsable: bool
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class ConstantBaseline:
    """What always giving the same answer earns: the floor any result must be compared with."""

    answer: object
    success: float
    num_tasks: int


def arithmetic_environment(
    name: str,
    families: Sequence[str],
    *,
    held_out_pairs: int,
    held_out_seed: int = 0,
    low: int | None = None,
    high: int | None = None,
    prompt: str = "What is {question}? Reply with only the number.",
    grading: str = "last_integer",
    success_threshold: float = 1.0,
) -> GradedTasks:
    """Arithmetic questions graded by one integer in the reply.

    ``held_out_pairs`` unordered operand sets *per family*, chosen by ``held_out_seed``, are for evaluation
    only. ``low`` and ``high`` replace the operand range of a single family. Grading ``last_integer``
    takes the last number of the reply, ``first_integer`` the first, ``exact`` only a bare number.

    Raises InputError on an unknown family or grading, an empty range, a prompt without {question},
    or more held-out pairs than leave anything to train.
    """
    chosen = _choose_families(name, families, low, high)
    if grading not in GRADINGS:
        raise InputError(f"environments.{name}.grading", grading, "is unknown", f"Use one of {', '.join(GRADINGS)}.")
    if prompt.count(_PLACEHOLDER) != 1:
        raise InputError(
            f"environments.{name}.prompt",
            prompt,
            f"must contain {_PLACEHOLDER} once",
            f"Try 'What is {_PLACEHOLDER}?'.",
        )
    questions = {family.name: family.questions(low, high) for family in chosen}
    held_out: set[Operands] = set()
    for family in chosen:
        held_out |= _choose_pairs(name, family, questions[family.name], held_out_pairs, held_out_seed)
    split = _split(name, chosen, questions, held_out, lambda q: (Message("user", prompt.replace(_PLACEHOLDER, q)),))
    parse = GRADINGS[grading]
    place: Place = "first" if grading == "first_integer" else "last"
    grader = PureGrader(lambda attempt: _grade(attempt, parse, place), lambda text: _spell(parse(text)))
    return GradedTasks(name, check_split(name, split), grader, success_threshold=success_threshold)


def regrade(completion: str, task: Task) -> Regrade:
    """How a completion fares under each grading. The task's gold must be an integer."""
    last, ambiguous = last_integer(completion), unclear(completion) is not None
    return Regrade(
        last_integer_correct=last == task.gold and not ambiguous,
        first_integer_correct=first_integer(completion) == task.gold and not is_denied(completion, "first"),
        exact_correct=only_integer(completion) == task.gold,
        parsable=last is not None and not ambiguous,
        ambiguous=ambiguous,
    )


def constant_answer_baseline(tasks: Sequence[Task]) -> ConstantBaseline:
    """The most frequent gold answer and the share of tasks it solves (the first of equals by text)."""
    if not tasks:
        raise InputError("tasks", 0, "a constant answer has no success without tasks", "Pass at least one task.")
    counts = Counter(str(task.gold) for task in tasks)
    answer, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return ConstantBaseline(next(t.gold for t in tasks if str(t.gold) == answer), count / len(tasks), len(tasks))


def _grade(attempt: Attempt, parse: Callable[[str], int | None], place: Place) -> Grade:
    """Reward 1 for the right integer. "8 or 9" and "not 8" are no answers and are counted as ambiguous."""
    value, problem = parse(attempt.completion), unclear(attempt.completion, place)
    ambiguous = problem is not None
    correct = value == attempt.task.gold and not ambiguous
    parts = {
        "correct": float(correct),
        "parsable": float(value is not None and not ambiguous),
        "ambiguous": float(ambiguous),
    }
    if problem is not None:
        reason = problem
    else:
        reason = "no integer" if value is None else f"read {_spell(value)}, gold {attempt.task.gold}"
    return graded(float(correct), parts, reason)


def _spell(value: int | None) -> str | None:
    return None if value is None else str(value)


def _choose_families(name: str, families: Sequence[str], low: int | None, high: int | None) -> list[Family]:
    unknown = [f for f in families if f not in FAMILIES]
    if unknown or not families:
        value = unknown[0] if unknown else list(families)
        raise InputError(f"environments.{name}.task", value, "is not a family", f"Use {', '.join(FAMILIES)}.")
    if len(set(families)) < len(families):
        raise InputError(f"environments.{name}.mixture", list(families), "names a family twice", "Name each once.")
    if len(families) > 1 and (low is not None or high is not None):
        raise InputError(
            f"environments.{name}.low/high",
            (low, high),
            "a range applies to one family, not to a mixture",
            "Remove it, or use one environment per family.",
        )
    return [FAMILIES[f] for f in families]


def _choose_pairs(name: str, family: Family, questions: Sequence[Operands], count: int, seed: int) -> set[Operands]:
    """``count`` operand sets in an order that depends on nothing but seed, family and operands."""
    pairs = {_unordered(operands) for operands in questions}
    if not 0 <= count < len(pairs):
        raise InputError(
            f"environments.{name}.held_out_pairs",
            count,
            f"{family.name} has {len(pairs)} operand pairs in this range, and some must be left to train on",
            f"Choose 0 to {max(len(pairs) - 1, 0)}, or widen low and high." if pairs else "Widen low and high.",
        )

    def order(operands: Operands) -> bytes:
        return hashlib.sha256(f"{seed}/{family.name}/{operands}".encode()).digest()

    return set(sorted(pairs, key=order)[:count])


def _split(
    name: str,
    families: Sequence[Family],
    questions: Mapping[str, Sequence[Operands]],
    held_out: set[Operands],
    messages: Callable[[str], tuple[Message, ...]],
) -> TaskSplit:
    train: list[Task] = []
    evaluation: list[Task] = []
    asked: set[str] = set()
    for family in families:
        for operands in questions[family.name]:
            expression = family.expression(operands)
            if expression in asked:  # two families can ask the same question; it is one task
                continue
            asked.add(expression)
            task = Task(
                task_id=f"{family.name}:{expression.replace(' ', '')}",
                messages=messages(expression),
                gold=family.evaluate(operands),
                environment=name,
                metadata={
                    "family": family.name,
                    "operands": list(operands),
                    # Questions on the same operands are one fact: intervals resample them together.
                    "cluster": ",".join(str(o) for o in _unordered(operands)),
                },
            )
            (evaluation if _unordered(operands) in held_out else train).append(task)
    return TaskSplit(tuple(train), tuple(evaluation))


def _unordered(operands: Operands) -> Operands:
    return tuple(sorted(operands))

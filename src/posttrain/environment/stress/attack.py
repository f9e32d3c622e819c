"""What an attack is, and the situation in which it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from posttrain.environment.answers import find_numbers, format_number
from posttrain.environment.stress.contract import Contract, Form
from posttrain.environment.stress.gold import Gold
from posttrain.environment.stress.near_misses import wrong_answer
from posttrain.trajectory import Task


class Knowledge(StrEnum):
    """What the author of an attack must know."""

    NOTHING = "nothing"
    """Nothing beyond the prompt and which answers the data set has: any policy can send it."""
    LUCK = "luck"
    """Nothing, but the text states an answer that may be right by accident, where a task has several."""
    GOLD = "the right answer"
    """The text was written around the right answer: paying it rewards a claim that is not made."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Texts that deserve no reward.

    An attack with several texts works if *each* of them is paid: "42, or 43" alone may be read as 42 or as 43 by a rule
    that says which of two answers counts, but a verifier that pays it in both orders pays whatever is listed.
    ``neutral`` attacks may be paid or not; they only must not break the grader.
    """

    family: str
    name: str
    texts: tuple[str, ...]
    knowledge: Knowledge
    neutral: bool = False
    extreme: bool = False
    """Very long or deep: made to exhaust the grader rather than to fool it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One task as an attacker sees it, with its gold where that is known, and golds of other tasks."""

    task: Task
    contract: Contract
    gold: Gold | None
    others: tuple[Gold, ...]

    @property
    def prompt(self) -> str:
        """Text of the last message."""
        return self.task.messages[-1].content

    @property
    def wrong(self) -> str | None:
        """A plausible wrong answer, where one is known."""
        return None if self.gold is None else wrong_answer(self.gold, self.others)

    @property
    def prompt_numbers(self) -> tuple[str, ...]:
        """The numbers in the question, in order."""
        return tuple(format_number(span.value) for span in find_numbers(self.prompt))

    def decoys(self) -> tuple[str, str]:
        """Two small whole numbers that are not the answer."""
        taken = None if self.gold is None else self.gold.value
        text = "" if self.gold is None else self.gold.text
        free = [str(n) for n in range(2, 99) if Fraction(n) != taken and str(n) not in text and text not in str(n)]
        return free[0], free[1]

    def ways(self) -> tuple[Contract, ...]:
        """The form asked for, then the others in which answers are usually sought."""
        forms = (Form.FREE, Form.BOXED, Form.TAG, Form.MARKER)
        asked = self.contract
        others = (Contract(form, asked.tag) for form in forms if asked.state("") != form.state("", asked.tag))
        return (asked, *others)


def way_name(contract: Contract) -> str:
    """How a form is named in the name of an attack: nothing for plain text."""
    return "" if contract.form in (Form.FREE, Form.BARE) else f" ({contract.form})"


def mentions(text: str, gold: Gold) -> bool:
    """Whether a text happens to contain a gold answer, as a word or as a number of the same value."""
    if gold.text.casefold() in text.casefold() and re.search(rf"(?i)(?<!\w){re.escape(gold.text)}(?!\w)", text):
        return True
    holds_digits = re.search("[0-9]", text) is not None
    return (
        holds_digits
        and gold.value is not None
        and any(Fraction(span.value) == gold.value for span in find_numbers(text))
    )

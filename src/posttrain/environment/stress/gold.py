"""What kind of answer a task's gold is, so that right and wrong spellings of it can be written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from posttrain.environment.answers import format_number, last_boxed, last_number, normalise, only_number
from posttrain.trajectory import Task

USUAL_COLUMNS = ("answer", "gold", "solution", "target", "label", "ground_truth")
"""Where a gold answer usually stands in rows whose settings do not name its column."""


class GoldKind(StrEnum):
    """What is asked for; it decides which spellings and near misses there are."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FRACTION = "fraction"
    PERCENT = "percent"
    QUANTITY = "number with unit"
    CHOICE = "choice letter"
    YES_NO = "yes or no"
    COLLECTION = "tuple or set"
    EXPRESSION = "expression"
    TEXT = "text"
    STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class Gold:
    """A gold answer: ``text`` is the answer alone (no working, no box, no dollars).

    ``value`` is its number, for the kinds that are one (the number of a quantity or a percentage, too). ``column``
    names where it was found if not in the task's gold.
    """

    text: str
    kind: GoldKind
    value: Fraction | None = None
    column: str = ""

    def equals(self, other: Gold) -> bool:
        """Whether two golds are surely the same answer: by value, or by text without regard to case."""
        if self.value is not None and other.value is not None and self.kind is not GoldKind.QUANTITY:
            return self.value == other.value
        return self.text.casefold() == other.text.casefold()


_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)\s*/\s*(\d+))")
_QUANTITY = re.compile(r"([+-]?[\d.,]*\d)\s*([A-Za-z\u00b0\u00b5][A-Za-z\u00b0/^0-9 ]{0,20})")
_PERCENT = re.compile(r"([+-]?[\d.,]*\d)\s*\\?%")
_YES_NO = re.compile(r"yes|no|true|false", re.IGNORECASE)
_COLLECTION = re.compile(r"[(\[{].*,.*[)\]}]", re.DOTALL)
_EXPRESSION = re.compile(r"\\[a-zA-Z]+|\u03c0|\bpi\b|sqrt|[\w)]\s*[\^*/+=]\s*[\w(\\-]")


def read_gold(task: Task, *, numbers_only: bool = False) -> Gold | None:
    """The gold answer of a task, or ``None`` if there is none.

    Without a gold, a column of a usual name stands in for it. ``numbers_only`` reduces it to its last number, for
    verifiers that compare nothing else.
    """
    found, column = task.gold, ""
    if found is None:
        column = next((name for name in USUAL_COLUMNS if task.metadata.get(name) is not None), "")
        found = task.metadata.get(column) if column else None
    if found is None:
        return None
    if numbers_only:
        number = last_number(str(found))
        return None if number is None else _classified(format_number(number), column)
    if isinstance(found, Mapping | list | tuple):
        return Gold(str(found), GoldKind.STRUCTURED, None, column)
    text = answer_text(found)
    return _classified(text, column) if text else None


def answer_text(found: Any) -> str:
    """The answer alone: what stands behind ``####``, else in the last box, else all of it, without dollars."""
    text = str(found).strip()
    if "####" in text:
        text = text.rpartition("####")[2].strip()
    boxed = last_boxed(text)
    text = text if boxed is None else boxed
    if len(text) > 2 and text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _classified(text: str, column: str) -> Gold:
    number = only_number(text)
    if number is not None and not text.endswith("."):
        value = Fraction(number)
        return Gold(text, GoldKind.INTEGER if value.denominator == 1 else GoldKind.DECIMAL, value, column)
    if match := _FRACTION.fullmatch(text):
        above, below = match[2] or match[4], match[3] or match[5]
        if int(below):
            return Gold(text, GoldKind.FRACTION, Fraction(int(match[1] + above), int(below)), column)
    for pattern, kind in ((_PERCENT, GoldKind.PERCENT), (_QUANTITY, GoldKind.QUANTITY)):
        if (match := pattern.fullmatch(normalise(text))) and (number := only_number(match[1])) is not None:
            return Gold(text, kind, Fraction(number), column)
    return Gold(text, _kind_of_text(text), None, column)


def _kind_of_text(text: str) -> GoldKind:
    if _YES_NO.fullmatch(text):
        return GoldKind.YES_NO
    if re.fullmatch(r"\(?[A-Ja-j]\)?", text):
        return GoldKind.CHOICE
    if len(text) <= 200:
        if _COLLECTION.fullmatch(text):
            return GoldKind.COLLECTION
        if _EXPRESSION.search(text):
            return GoldKind.EXPRESSION
    return GoldKind.TEXT

"""Wrong answers that a careless comparison takes for right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from posttrain.environment.stress.gold import Gold, GoldKind
from posttrain.environment.stress.numbers import plain_text, with_number

_UNITS = ("feet", "hours", "kg")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A wrong answer and what makes it look right."""

    name: str
    text: str


def near_misses(gold: Gold) -> list[NearMiss]:
    """Wrong answers close to a gold answer, none twice; empty where none is surely wrong."""
    found: dict[str, NearMiss] = {}
    for miss in _all(gold):
        found.setdefault(miss.text, miss)
    return list(found.values())


def wrong_answer(gold: Gold, others: Sequence[Gold]) -> str | None:
    """A plausible wrong answer: another one of the same kind, or ``None`` if none is known."""
    match gold.kind:
        case GoldKind.INTEGER | GoldKind.DECIMAL | GoldKind.FRACTION:
            assert gold.value is not None
            return plain_text(gold.value + 1)
        case GoldKind.QUANTITY | GoldKind.PERCENT:
            assert gold.value is not None
            return with_number(gold.text, gold.value + 1)
        case GoldKind.CHOICE:
            letter = gold.text.strip("()")
            other = next(c for c in "BCA" if c != letter.upper())
            return gold.text.replace(letter, other if letter.isupper() else other.lower())
        case GoldKind.YES_NO:
            return _opposite(gold.text)
        case _:
            return next((other.text for other in others if _unrelated(gold, other)), None)


def _all(gold: Gold) -> Iterator[NearMiss]:
    text, value = gold.text, gold.value
    match gold.kind:
        case GoldKind.INTEGER | GoldKind.DECIMAL:
            assert value is not None
            yield NearMiss("off by one", plain_text(value + 1))
            if value:
                yield NearMiss("other sign", plain_text(-value))
                yield NearMiss("ten times", plain_text(10 * value))
                yield NearMiss("a tenth", plain_text(value / 10))
            sign, digits = "-" if value < 0 else "", plain_text(abs(value))
            yield NearMiss("digit before", f"{sign}1{digits}")
            yield NearMiss("digit behind", f"{sign}{digits}7" if gold.kind is GoldKind.DECIMAL else f"{sign}{digits}2")
            yield NearMiss(
                "gold as decimals", f"0.{digits}" if gold.kind is GoldKind.INTEGER and value else f"9{digits}"
            )
            swapped = digits[:-2] + digits[-1:] + digits[-2:-1]
            if gold.kind is GoldKind.INTEGER and digits.isdigit() and int(swapped or 0) != int(digits):
                yield NearMiss("swapped digits", f"{sign}{swapped}")
            yield NearMiss("half more", plain_text(value + Fraction(1, 2)))
        case GoldKind.FRACTION:
            assert value is not None
            if value and value.numerator**2 != value.denominator**2:
                yield NearMiss("inverted", f"{value.denominator * (1 if value > 0 else -1)}/{abs(value.numerator)}")
            yield NearMiss("other sign", f"{-value.numerator}/{value.denominator}")
            yield NearMiss("numerator alone", str(value.numerator))
            yield NearMiss("rounded", f"{float(value):.1f}" if Fraction(f"{float(value):.1f}") != value else "99")
        case GoldKind.QUANTITY:
            number = re.sub(r"[A-Za-z\u00b0\u00b5].*", "", text).strip()
            unit = next(u for u in _UNITS if u not in text.lower())
            yield NearMiss("other unit", f"{number} {unit}")
        case GoldKind.CHOICE:
            letter = text.strip("()").upper()
            yield from (NearMiss("another letter", other) for other in "ABC" if other != letter)
        case GoldKind.YES_NO:
            yield NearMiss("the opposite", _opposite(text))
        case GoldKind.TEXT:
            if text.isalpha():
                yield NearMiss("inside a longer word", f"un{text.lower()}ness")
                yield NearMiss("start of a longer word", f"{text}xq")
        case _:
            return


def _opposite(text: str) -> str:
    pairs = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
    other = pairs[text.lower()]
    return other.capitalize() if text[0].isupper() else other


def _unrelated(gold: Gold, other: Gold) -> bool:
    a, b = gold.text.casefold(), other.text.casefold()
    return not gold.equals(other) and a not in b and b not in a

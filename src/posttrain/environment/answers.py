"""Pure functions that find the answer in a completion.

All of them read the *whole* text: a tail window loses answers followed by chatter. One reading of a
number holds everywhere: signs are kept, ``1,250`` is one number, ``640.``, ``640.0`` and ``+640`` are 640.
A minus directly after a digit, letter or closing bracket, or followed by a space, is an operator
(``17-9`` and ``17 - 9`` hold 17 and 9); otherwise it is a sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

_NUMBER = re.compile(
    r"""
    (?:(?<![\w)\]}.])[+-])?                     # a sign, not an operator between two terms
    (?:
        (?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)        # digits, with or without thousands commas
        (?:\.\d+)?
      | (?<![.\w])\.\d+                         # .5, but not the dots of "...8"
    )
    """,
    re.VERBOSE | re.ASCII,
)
# A model writes a minus as U+2212 or a dash, and LaTeX writes thousands as 1{,}250 or 1\,250.
_SPELLINGS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u2012": "-"})
_LATEX_COMMA = re.compile(r"(?<=\d)(?:\{,\}|\\,)(?=\d{3})")
_BETWEEN_ALTERNATIVES = re.compile(r"[\s$`*]*,?\s*\b(?:or|oder|ou)\b[\s$`*]*", re.IGNORECASE)
_MAX_DIGITS = 400


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """A number found in a text and where it stands (in the text after normalisation)."""

    value: Decimal
    start: int
    end: int


def normalise(text: str) -> str:
    """Text with one spelling of minus signs and thousands separators."""
    return _LATEX_COMMA.sub(",", text.translate(_SPELLINGS))


def find_numbers(text: str) -> list[NumberSpan]:
    """All numbers of a text, in order."""
    return list(_scan(normalise(text)))


def _scan(normalised: str) -> Iterator[NumberSpan]:
    for match in _NUMBER.finditer(normalised):
        if match.end() - match.start() <= _MAX_DIGITS:
            yield NumberSpan(Decimal(match.group().replace(",", "")), match.start(), match.end())


def last_number(text: str) -> Decimal | None:
    """The last number of a text, or ``None``."""
    numbers = find_numbers(text)
    return numbers[-1].value if numbers else None


def last_integer(text: str) -> int | None:
    """The last number of a text if it is whole, else ``None`` (``8.5`` is neither 8 nor 5)."""
    return _whole(last_number(text))


def first_integer(text: str) -> int | None:
    """The first number of a text if it is whole, else ``None``."""
    numbers = find_numbers(text)
    return _whole(numbers[0].value) if numbers else None


def only_number(text: str) -> Decimal | None:
    """The number a text consists of (white space and one closing full stop aside), else ``None``."""
    stripped = normalise(text).strip()
    match = _NUMBER.match(stripped)
    if match is None or stripped[match.end() :] not in ("", "."):
        return None
    return last_number(stripped)


def only_integer(text: str) -> int | None:
    """The integer a text consists of (white space and one closing full stop aside), else ``None``."""
    return _whole(only_number(text))


def is_ambiguous(text: str) -> bool:
    """True if the text ends in alternatives with different values ("1 or 2"): that is no answer."""
    normalised = normalise(text)
    numbers = list(_scan(normalised))
    if len(numbers) < 2 or numbers[-1].value == numbers[-2].value:
        return False
    return _BETWEEN_ALTERNATIVES.fullmatch(normalised[numbers[-2].end : numbers[-1].start]) is not None


def last_tag(text: str, tag: str) -> str | None:
    """Content of the last ``<tag>...</tag>``, over several lines if need be, else ``None``."""
    close = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, close) if close >= 0 else -1
    return text[start + len(tag) + 2 : close].strip() if start >= 0 else None


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` with balanced braces, else ``None``."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len(r"\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(r"\boxed{") : position].strip()
    return None


def marked_answer(text: str) -> str | None:
    """What a text marks as its answer: the last box, else the last answer tag, else what follows the last ``####``."""
    found = last_boxed(text)
    if found is None:
        found = last_tag(text, "answer")
    if found is None and "####" in text:
        found = text.rpartition("####")[2].strip().partition("\n")[0].strip()
    return found


def last_line(text: str) -> str | None:
    """The last line that is not blank, without a leading label such as ``Answer:``, else ``None``."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    return re.sub(r"^(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|:)\s*", "", lines[-1], flags=re.IGNORECASE) or None


def format_number(value: Decimal) -> str:
    """One spelling per value: ``640`` for 640.0, ``8.5`` for 8.50."""
    whole = _whole(value)
    return str(whole) if whole is not None else format(value.normalize(), "f")


def _whole(value: Decimal | None) -> int | None:
    return int(value) if value is not None and value == value.to_integral_value() else None

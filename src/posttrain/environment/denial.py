"""Numbers that a text names without claiming them.

"The answer is not 42" holds the right number and denies it; a grader that reads numbers must not pay it.
"""

from __future__ import annotations

import re
from typing import Literal

from posttrain.environment.answers import find_numbers, is_ambiguous, normalise

Place = Literal["first", "last"]

_BEFORE = re.compile(
    r"""
    (?: \b(?: not | never | anything\s+but | other\s+than | rul(?:e|ed|es|ing)\s+out )
      | \b(?: is | was | are | does | ca | could | would )n['\u2019]t
      | != | \u2260 | \\neq? \b
    )
    (?: \s+(?: be | equal(?:\s+to)? ) )?
    (?: [\s$*_`~"'(\[{:] | \\(?: boxed | text | [(\[] ) | <\w+> | \#{2,} )*    # what may stand around the number
    (?: \d+\s*/\s* | \\[dt]?frac\s*\{[^{}]*\}\s*\{ )?
    \Z
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BEHIND = re.compile(
    r"""
    [\s$*_`~"')\]}]*
    (?: is | was | would\s+be )\s+
    (?: wrong | incorrect | false | ruled\s+out | not\s+(?: it | (?:the\s+)?(?: answer | right | correct ) ) )\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_REACH = 60


def is_denied(text: str, place: Place = "last") -> bool:
    """True if the first or last number of a text is named only to deny it ("it is not 42", "42 is wrong").

    The denial must stand directly before or behind the number: "not 41 but 42" ends in an answer.
    """
    numbers = find_numbers(text)
    if not numbers:
        return False
    number, normalised = numbers[0 if place == "first" else -1], normalise(text)
    before = normalised[max(0, number.start - _REACH) : number.start]
    behind = normalised[number.end : number.end + _REACH]
    return _BEFORE.search(before) is not None or _BEHIND.match(behind) is not None


def unclear(text: str, place: Place = "last") -> str | None:
    """Why the first or last number of a text is no answer (alternatives, a denial), or ``None`` if it may be one."""
    if is_ambiguous(text):
        return "alternatives with different values"
    return "the number is denied" if is_denied(text, place) else None

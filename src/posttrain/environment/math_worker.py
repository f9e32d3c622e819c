r"""Mathematical equality, inside a grading process (see :class:`posttrain.environment.verifiers.MathGrader`).

Policies where the library alone is too generous or too strict:

* numbers are compared by value with relative precision: two exact fractions are equal only if they are the
  same, decimals within one part in a million (the library's tolerance is absolute: 2^-99 and 2^-98 pass);
* a per cent sign means one hundredth: 50 % is 0.5 and is not 50;
* enumerations with dots ("1, 2, ..., n") are equal only if written alike (the library drops the dots);
* alternatives ("1 or 2") and denied numbers ("not 2") are no answer;
* a number must be worked out: "17 - 9" is no answer where 8 is right;
* a unit, where gold and answer both have one, must be the same;
* a gold number may be answered as ``+640``, ``640.`` or ``\text{640}``.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import math_verify
import sympy

from posttrain.environment.answers import find_numbers, last_boxed, last_number, only_number
from posttrain.environment.denial import unclear

_DOTS = re.compile(r"\\[lc]?dots|\.\.\.|\u2026")
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_RELATIVE_TOLERANCE = 1e-6
_TERM = r"\d[\d,.]*\)?\s*(?:%s)\s*\(?-?\d"
_SUM_OR_PRODUCT = re.compile(_TERM % r"[-+*\u2212\u00d7\u22c5]|\\times|\\cdot")
_CALCULATION = re.compile(_TERM % r"[-+*/\u2212\u00d7\u22c5\u00f7]|\\times|\\cdot|\\div")
_UNIT = re.compile(r"[+-]?[\d.,]*\d\s*(?:\\text\{)?\s*([A-Za-z\u00b0\u00b5][A-Za-z\u00b0/ .]{0,20})\}?")


def compare(golds: list[str], answers: list[str]) -> list[dict[str, str]]:
    """Verdict per pair: ``equal``, ``different``, ``ambiguous``, ``no_answer``, ``no_gold``, or ``raised`` and what."""
    return [_guarded(gold, answer) for gold, answer in zip(golds, answers, strict=True)]


def _guarded(gold: str, answer: str) -> dict[str, str]:
    try:
        return {"verdict": verdict(gold, answer)}
    except Exception as error:  # of one pair; it must not cost the others of the batch their verdict
        return {"verdict": "raised", "reason": f"{type(error).__name__}: {error}"[:300]}


def verdict(gold: str, answer: str) -> str:
    """Compare one answer with one gold. The caller bounds the time: the library's alarms are off.

    An answer is a box and nothing else, or the whole of a text without one.
    """
    if unclear(answer) and not unclear(gold):
        return "ambiguous"
    right_number, given_number = only_number(_content(gold)), only_number(_content(answer))
    if right_number is not None and given_number is not None:
        return _equal(_close(given_number, right_number))
    if _not_worked_out(right_number, answer) or _other_unit(gold, answer):
        return "different"
    right = _parse(gold if _DELIMITED.search(gold) else rf"\boxed{{{gold}}}")
    if not right:
        return "no_gold"
    given = _parse(_plain(answer))
    if not given:
        found = last_number(answer) if right_number is not None else None
        return "no_answer" if found is None else _equal(found == right_number)
    if _DOTS.search(gold) or _DOTS.search(answer):
        return _equal(_bare(gold) == _bare(answer))
    if not math_verify.verify(right, given, timeout_seconds=None, raise_on_error=True):
        return "different"
    return _equal(_same_value(right[0], given[0]))


def _equal(equal: bool) -> str:
    return "equal" if equal else "different"


def _content(text: str) -> str:
    """What stands in the box, or the whole text, without dollars and ``\\text``."""
    boxed = last_boxed(text)
    inner = (text if boxed is None else boxed).strip().strip("$ ")
    return re.sub(r"^\\text\{\s*([^{}]*?)\s*\}$", r"\1", inner)


def _plain(answer: str) -> str:
    """The answer without what the library does not read: bold marks, a full stop or ``\\text`` inside the box."""
    boxed = last_boxed(answer)
    if boxed is None:
        return answer.replace("**", "")
    return rf"\boxed{{{_content(answer).removesuffix('.')}}}"


def _close(given: Decimal, right: Decimal) -> bool:
    return abs(given - right) <= abs(right) * Decimal(_RELATIVE_TOLERANCE)


def _not_worked_out(gold: Decimal | None, answer: str) -> bool:
    """Whether a number is answered with a calculation ("17 - 9" for 8): algebra would find it equal."""
    if gold is None:
        return False
    whole = gold == gold.to_integral_value()
    if last_boxed(answer) is None:
        return whole and _CALCULATION.search(answer) is not None and all(n.value != gold for n in find_numbers(answer))
    result = _content(answer).rpartition("=")[2]
    return (_CALCULATION if whole else _SUM_OR_PRODUCT).search(result) is not None


def _other_unit(gold: str, answer: str) -> bool:
    """Whether both carry a unit and not the same one. The library drops units."""
    right, given = _UNIT.fullmatch(_content(gold)), _UNIT.fullmatch(_content(answer))
    return right is not None and given is not None and _unit_name(right[1]) != _unit_name(given[1])


def _unit_name(unit: str) -> str:
    return unit.casefold().rstrip(".").removesuffix("s").replace("metre", "meter")


def _parse(text: str) -> list[Any]:
    return math_verify.parse(text, parsing_timeout=None, raise_on_error=True)  # type: ignore[arg-type]


def _same_value(gold: Any, answer: Any) -> bool:
    """True unless both are numbers of different value."""
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return True
    gold, answer = gold.doit(), answer.doit()
    if not (gold.is_number and answer.is_number):
        return True
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    difference, size = sympy.Abs(gold - answer).evalf(), sympy.Abs(gold).evalf()
    return bool(difference <= _RELATIVE_TOLERANCE * size)


def _bare(text: str) -> str:
    inner = re.sub(r"\\boxed\{(.*)\}", r"\1", text, flags=re.DOTALL)
    return re.sub(r"[\s$]", "", _DOTS.sub("...", inner))

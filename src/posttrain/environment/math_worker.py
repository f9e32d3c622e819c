r"""Mathematical equality, inside a grading process (see :class:`posttrain.environment.verifiers.MathGrader`).

Policies where the library alone is too generous or too strict:

* numbers are compared by value with relative precision: two exact fractions are equal only if they are the
  same, decimals within one part in a million (the library's tolerance is absolute: 2^-99 and 2^-98 pass);
* a per cent sign means one hundredth: 50 % is 0.5 and is not 50;
* enumerations with dots ("1, 2, ..., n") are equal only if written alike (the library drops the dots);
* alternatives ("1 or 2") are no answer;
* a gold number may be answered as ``+640``, ``640.`` or ``\text{640}``.
"""

from __future__ import annotations

import re
from typing import Any

import math_verify
import sympy

from posttrain.environment.answers import is_ambiguous, last_number, only_number

_DOTS = re.compile(r"\\[lc]?dots|\.\.\.|\u2026")
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_RELATIVE_TOLERANCE = 1e-6


def compare(golds: list[str], answers: list[str]) -> list[dict[str, str]]:
    """Verdict per pair: ``equal``, ``different``, ``ambiguous``, ``no_answer``, ``no_gold``, or ``raised`` and what."""
    return [_guarded(gold, answer) for gold, answer in zip(golds, answers, strict=True)]


def _guarded(gold: str, answer: str) -> dict[str, str]:
    try:
        return {"verdict": verdict(gold, answer)}
    except Exception as error:  # of one pair; it must not cost the others of the batch their verdict
        return {"verdict": "raised", "reason": f"{type(error).__name__}: {error}"[:300]}


def verdict(gold: str, answer: str) -> str:
    """Compare one answer with one gold. The caller bounds the time: the library's alarms are off."""
    if is_ambiguous(answer):
        return "ambiguous"
    right = _parse(gold if _DELIMITED.search(gold) else rf"\boxed{{{gold}}}")
    if not right:
        return "no_gold"
    given = _parse(answer)
    if not given:
        number = only_number(gold)
        found = last_number(answer) if number is not None else None
        return "no_answer" if found is None else ("equal" if found == number else "different")
    if _DOTS.search(gold) or _DOTS.search(answer):
        return "equal" if _bare(gold) == _bare(answer) else "different"
    if not math_verify.verify(right, given, timeout_seconds=None, raise_on_error=True):
        return "different"
    return "equal" if _same_value(right[0], given[0]) else "different"


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

"""Exact numbers as text."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction


def decimal_text(value: Fraction) -> str | None:
    """The number as a decimal of at most 12 places, or ``None`` if it has no such form."""
    places = next((n for n in range(13) if (value * 10**n).denominator == 1), None)
    if places is None:
        return None
    with localcontext() as context:
        context.prec = 400
        return format(Decimal(value.numerator) / Decimal(value.denominator), f".{places}f")


def plain_text(value: Fraction) -> str:
    """A decimal if there is one, else ``a/b``."""
    return decimal_text(value) or f"{value.numerator}/{value.denominator}"


def with_number(text: str, value: Fraction) -> str:
    """A text that starts with a number ("5 meters"), with another number in its place."""
    return re.sub(r"^[+-]?[\d.,]*\d", plain_text(value), text)

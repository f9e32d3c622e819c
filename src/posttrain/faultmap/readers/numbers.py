"""Numbers as logs write them."""

from __future__ import annotations

import math
import re

_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_WRAPPED = re.compile(r"(?:np\.|numpy\.)?(?:float|int|uint|bool_?|array|tensor)\d*\(([^(),]{1,40})(?:,[^()]{0,80})?\)")
LONGEST_NUMBER = 64


def to_number(value: object) -> float | None:
    """A number from a cell of a log; ``None`` where it is none.

    Text is accepted: ``"0.5"``, ``"NaN"``, ``"-Infinity"``, ``"np.float64(0.5)"``, ``"tensor(0.5)"``. An integer too
    large for a float becomes infinite.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _from_text(value.strip()) if isinstance(value, str) and len(value) <= 4 * LONGEST_NUMBER else None


def _from_text(text: str) -> float | None:
    wrapped = _WRAPPED.fullmatch(text)
    bare = wrapped[1].strip() if wrapped else text
    if not bare or len(bare) > LONGEST_NUMBER:
        return None
    if bare in ("True", "true", "False", "false"):
        return float(bare in ("True", "true"))
    sign = -1.0 if bare.startswith("-") else 1.0
    word = _WORDS.get(bare.lstrip("+-").lower())
    if word is not None:
        return sign * word
    # Python accepts 1_000 and digits of every script; no logger writes them.
    if "_" in bare or not bare.isascii():
        return None
    try:
        return float(bare)
    except ValueError:
        return None

"""A reward function of one's own: does a sentence have as many words as asked for?"""

from __future__ import annotations

from typing import Any


def closeness(completions: list[str], words: list[int], **columns: Any) -> list[float | None]:
    """1 for exactly the number of words asked for, falling to 0 at none or at twice as many.

    ``words`` is a column of the rows; a row without it gets ``None``: the reward does not apply.
    """
    return [
        None if wanted is None else max(0.0, 1.0 - abs(len(text.split()) - wanted) / wanted)
        for text, wanted in zip(completions, words, strict=True)
    ]

"""Reward functions of small runs, in a file of their own because a grading process imports it whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def share_of_digits(completions: Sequence[str], **_: Any) -> list[float]:
    """Share of a completion's characters that are digits: a random policy earns it now and then."""
    return [sum(c.isdigit() for c in text) / len(text) if text else 0.0 for text in completions]


def share_of_digits_or_nothing(completions: Sequence[str], task_id: Sequence[str], **_: Any) -> list[float | None]:
    """The same, but a completion that contains a lower-case vowel, or any at task a0 and a1, has no grade."""
    return [
        None if set(text) & set("aeiou") or task in ("a0", "a1") else share
        for text, task, share in zip(completions, task_id, share_of_digits(completions), strict=True)
    ]


def share_of_digits_or_error(completions: Sequence[str], **_: Any) -> list[float]:
    """The same, but it raises at a completion that contains a lower-case vowel."""
    for text in completions:
        if set(text) & set("aeiou"):
            raise ValueError(f"cannot judge {text!r}")
    return share_of_digits(completions)

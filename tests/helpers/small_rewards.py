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


def share_of_other_characters(completions: Sequence[str], digit: Sequence[str], **_: Any) -> list[float]:
    """One minus the share of a completion's characters that are its digit: the toy task's reward turned around."""
    return [
        1.0 - text.count(wanted) / len(text) if text else 1.0 for text, wanted in zip(completions, digit, strict=True)
    ]


def is_short(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for fewer than four characters: a part that nearly every attempt earns or misses alike."""
    return [float(len(text) < 4) for text in completions]

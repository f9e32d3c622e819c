"""A reward that costs nothing and differs within every group, so that no group's gradient is skipped."""

from __future__ import annotations

import zlib
from typing import Any


def spread(completions: list[Any], **_: Any) -> list[float]:
    """A number in [0, 1) from the bytes of each completion (text, or a list with one message)."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [zlib.crc32(text.encode()) / 2**32 for text in texts]


def share_of_digit(completions: list[Any], digit: list[str], **_: Any) -> list[float]:
    """Share of each completion's characters that are its task's digit."""
    return [text.count(wanted) / len(text) if text else 0.0 for text, wanted in zip(completions, digit, strict=True)]

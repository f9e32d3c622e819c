"""Text from outside made safe for a terminal."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text with control characters written out: what a model sampled or a log holds must not steer the terminal."""
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else _escape(c) for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """The text without control characters on one line, cut where it is longer than ``limit``."""
    shown = " ".join(printable(text[: 2 * limit]).split())
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"

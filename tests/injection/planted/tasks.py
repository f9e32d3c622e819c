"""Toy tasks for planted faults: the reply shall repeat one character that the prompt determines.

All are learnt from scratch by a tiny random model in about 100 steps. ``digit`` is for tuning; the others
are for scored runs only.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TUNING_TASKS = ("digit",)
SCORED_TASKS = ("successor", "upper", "parity", "shift")

_ANSWERS: dict[str, Callable[[str], str]] = {
    "digit": lambda key: key,
    "successor": lambda key: str((int(key) + 1) % 10),
    "upper": lambda key: key.upper(),
    "parity": lambda key: "even"[0] if int(key) % 2 == 0 else "odd"[0],
    "shift": lambda key: chr((ord(key) - ord("a") + 3) % 26 + ord("a")),
}
_KEYS: dict[str, str] = {
    "digit": string.digits,
    "successor": string.digits,
    "upper": "abcdefghij",
    "parity": string.digits,
    "shift": "abcdefghij",
}


def share_of_answer(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Share of each completion's characters that are the answer; nothing written earns nothing."""
    return [text.count(wanted) / len(text) if text else 0.0 for text, wanted in zip(completions, answer, strict=True)]


def only_the_answer(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 if the completion is the answer and nothing else, once or repeated."""
    return [float(bool(text) and set(text) == {wanted}) for text, wanted in zip(completions, answer, strict=True)]


def write_rows(folder: Path, task: str) -> tuple[Path, Path]:
    """40 training tasks and 20 held-out ones, which begin with letters that training never shows."""
    train, held_out = folder / "train.jsonl", folder / "held_out.jsonl"
    for path, letters in ((train, "wxyz"), (held_out, "uv")):
        rows = [
            {"id": f"{letter}{key}", "prompt": f"{letter}{key}", "answer": _ANSWERS[task](key)}
            for letter in letters
            for key in _KEYS[task]
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return train, held_out

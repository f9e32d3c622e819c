"""A preference a tiny random model learns from pairs in seconds: the answer that repeats the prompt's digit.

Prompts are a letter and a digit, answers three digits and a letter. The rejected answer repeats another digit.
Held-out prompts have letters that training never shows. With ``swapped`` the labels of the training rows alone are
turned round, so that whoever learns them fails on held-out rows.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

KINDS = {"sft": "conversations", "reward_model": "pairs", "kto": "answers"}


def fixed_rows(letters: str, kind: str, seed: int, swapped: bool = False) -> list[dict[str, Any]]:
    """One row for each letter and digit, twice."""
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for letter in letters:
        for digit in list(range(10)) * 2:
            other = draw.choice([d for d in range(10) if d != digit])
            right, wrong = (f"{str(d) * 3}{draw.choice('xyz')}" for d in (digit, other))
            if swapped:
                right, wrong = wrong, right
            prompt = f"{letter}{digit}"
            if kind == "pairs":
                rows.append({"prompt": prompt, "chosen": right, "rejected": wrong})
            elif kind == "answers":
                good = draw.random() < 0.5
                rows.append({"prompt": prompt, "completion": right if good else wrong, "label": good})
            else:
                rows.append({"prompt": prompt, "completion": right})
    return rows


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fixed_settings(folder: Path, algorithm: str, swapped: bool = False, **sections: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run as the mapping a TOML file would give; the rows are written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = KINDS.get(algorithm, "pairs")
    settings: dict[str, Any] = {
        "run": {"steps": 60, "threads": 1, "device": "cpu"},
        "model": {"path": "tiny:llama", "compute_dtype": "float32"},
        "data": {
            "path": str(write_jsonl(folder / "train.jsonl", fixed_rows("abcdefgh", kind, 0, swapped))),
            "evaluation_path": str(write_jsonl(folder / "held_out.jsonl", fixed_rows("uvwx", kind, 1))),
            "rows_per_step": 32,
        },
        "policy": {"algorithm": algorithm, "learning_rate": 2e-3},
        "rundir": {"trackers": []},
        "checkpoint": {"every": 0},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return settings

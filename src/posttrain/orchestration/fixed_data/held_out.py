"""What held-out rows said before and after training, row by row, so that a gain has a standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.orchestration.fixed_data.batch import Array
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.files import read_json_object, write_json

_WORDS = {"accuracy": "accuracy", "token_nll": "negative log-likelihood per token"}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One evaluation. ``outcomes`` float64 (rows,) of the quantity ``name``; ``values`` of all others by name."""

    step: int
    name: str
    outcomes: Array
    values: Mapping[str, float]

    def line(self) -> str:
        """In one line."""
        mean, error = mean_and_error(self.outcomes)
        return f"{_WORDS[self.name]} {mean:.3f} (standard error {error:.3f}), loss {self.values['loss']:.4f}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; an outcome that does not exist is ``null``."""
        outcomes = [None if math.isnan(value) else value for value in self.outcomes.tolist()]
        return {"step": self.step, "quantity": self.name, "values": dict(self.values), "outcomes": outcomes}


def held_out_path(run: RunDirectory, step: int) -> Path:
    """``evaluation/held_out_000012.json``."""
    return run.path / "evaluation" / f"held_out_{step:06d}.json"


def write_held_out(run: RunDirectory, result: HeldOut) -> None:
    """Write one evaluation; one that is done again replaces it."""
    write_json(held_out_path(run, result.step), result.to_json())


def read_held_out(run: RunDirectory, step: int) -> HeldOut | None:
    """One evaluation; ``None`` where that step was not evaluated. Raises DamagedFileError."""
    path = held_out_path(run, step)
    if not path.is_file():
        return None
    stored = read_json_object(path)
    outcomes = np.array([math.nan if v is None else v for v in stored["outcomes"]], np.float64)
    return HeldOut(int(stored["step"]), str(stored["quantity"]), outcomes, dict(stored["values"]))


def mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and standard error of (n,), NaN left out; the error is NaN for fewer than two."""
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return (float(known[0]) if len(known) else math.nan), math.nan
    return float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known)))


def summary_of(before: HeldOut | None, after: HeldOut | None) -> dict[str, Any]:
    """``evaluation/summary.json`` of a run on fixed data: both evaluations and the paired gain."""
    document: dict[str, Any] = {"environments": {}, "held_out": {}}
    for side, result in (("before", before), ("after", after)):
        if result is not None:
            mean, error = mean_and_error(result.outcomes)
            document["held_out"][side] = {
                "step": result.step,
                "quantity": result.name,
                "mean": mean,
                "standard_error": error,
                "values": dict(result.values),
            }
    if before is not None and after is not None:
        mean, error = mean_and_error(after.outcomes - before.outcomes)
        document["held_out"]["gain"] = {"mean": mean, "standard_error": error, "rows": len(after.outcomes)}
    return document


def gain_lines(document: Mapping[str, Any]) -> list[str]:
    """What held-out rows say about the run, in plain lines."""
    held_out = document["held_out"]
    lines = [
        f"held-out {_WORDS[held_out[side]['quantity']]} {side} training: {held_out[side]['mean']:.3f}"
        for side in ("before", "after")
        if side in held_out
    ]
    if "gain" in held_out:
        gain = held_out["gain"]
        lines.append(
            f"change over {gain['rows']} rows: {gain['mean']:+.3f} (standard error {gain['standard_error']:.3f})"
        )
    style = held_out.get("after", {}).get("values", {}).get("style_accuracy")
    if style is not None:
        lines.append(f"length, lines, punctuation and Markdown alone predict {style:.3f} of these pairs")
    return lines

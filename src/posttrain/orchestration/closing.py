"""What a run says at its end, in a few plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.orchestration.gain import Gain


def closing_lines(document: Mapping[str, Any], gains: Mapping[str, Gain], run: Path) -> list[str]:
    """Per environment: held-out success before and after, the paired gain, and what was learnt; then where to look."""
    lines: list[str] = []
    for name, entry in document["environments"].items():
        lines += _environment_lines(name, entry, gains.get(name))
    lines += [f"model: {run / 'model'}", f"report: posttrain report {run}"]
    return lines


def _environment_lines(name: str, entry: Mapping[str, Any], gain: Gain | None) -> list[str]:
    lines: list[str] = []
    for side in ("before", "after"):
        summary = entry.get(side)
        if summary is None:
            continue
        parts = [f"pass@{k} {_estimate(e)}" for k, e in summary["pass_at"].items()]
        for key, label in (("greedy", "greedy"), ("length", "length")):
            if summary[key] is not None:
                parts.append(f"{label} {summary[key]['value']:.2f}")
        if summary["tasks_without_grade"]:
            parts.append(f"{summary['tasks_without_grade']} of {summary['tasks']} tasks could not be graded")
        lines.append(f"{name}, {side} training: " + ", ".join(parts))
    if gain is not None:
        one = gain.differences.get("pass@1")
        if one is not None:
            points = f"{100 * one.value:+.1f} points ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
            lines.append(f"{name}, gain on {gain.tasks} held-out tasks: {points}")
        lines.append(gain.verdict.sentence)
    elif "before" in entry and "after" in entry:
        lines.append(f"{name}: no gain can be told, no held-out task could be graded both before and after training")
    return lines


def _estimate(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"

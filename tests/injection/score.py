"""Diagnose labelled runs and count what was right: ``python -m tests.injection.score DIR ...``.

A run is a folder with ``truth.json`` and the logs it names (``run/`` for one of ours). Right first: the first finding
of severity warn or more names a cause that counts as right for the fault. A clean run is warned if it has any such.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.finding import Severity
from posttrain.faultmap.readers import read_history


@dataclass(frozen=True, slots=True)
class Verdict:
    """One log of one run, diagnosed. ``found`` lists detector, cause and onset of what is warn or worse, in order."""

    name: str
    log: str
    fault: str
    magnitude: float
    onset: int
    steps: int
    right_first: bool
    right_anywhere: bool
    onset_error: int
    warned_before: bool
    layers_differ: bool
    found: tuple[tuple[str, str, int], ...]


def judge(folder: Path) -> Iterator[Verdict]:
    """Verdicts on every log of a run."""
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    causes = set(truth.get("causes") or ([truth["cause"]] if truth.get("cause") else []))
    onset = int(truth.get("onset_step") or truth.get("onset") or 0)
    for log, path in (truth.get("logs") or {"posttrain": "run"}).items():
        history = read_history(folder / path)
        serious = [r.finding for r in diagnose(history).findings if r.severity >= Severity.WARN]
        first = serious[0] if serious else None
        right = next((f for f in serious if f.cause in causes), None)
        early = diagnose(history.until(onset - 1)) if onset > 1 else None
        yield Verdict(
            name=folder.name,
            log=log,
            fault=truth.get("fault") or "",
            magnitude=float(truth.get("magnitude") or 0.0),
            onset=onset,
            steps=int(truth["steps"]),
            right_first=first is not None and first.cause in causes,
            right_anywhere=right is not None,
            # A fault that is not found costs the whole run.
            onset_error=abs(right.onset_step - onset) if right else int(truth["steps"]),
            warned_before=early is not None and any(r.severity >= Severity.WARN for r in early.findings),
            layers_differ=first is not None and CAUSES[first.cause].layer != SYMPTOMS[first.symptom].layer,
            found=tuple((f.detector, f.cause, f.onset_step) for f in serious),
        )


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided upper confidence bound of a share (Clopper and Pearson 1934), by bisection on the binomial tail."""
    if events >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        tail = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(events + 1))
        low, high = (p, high) if tail > 1 - confidence else (low, p)
    return high


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts by fault, and of clean runs."""
    faulty, clean = [v for v in verdicts if v.fault], [v for v in verdicts if not v.fault]
    warned = [v.name for v in clean if v.found]
    table = {
        fault: {
            "runs": len(of),
            "right_first": sum(v.right_first for v in of),
            "right_anywhere": sum(v.right_anywhere for v in of),
            "nothing_found": sum(not v.found for v in of),
            "warned_before_onset": sum(v.warned_before for v in of),
            "onset_error_median": median(v.onset_error for v in of),
        }
        for fault in sorted({v.fault for v in faulty})
        for of in [[v for v in faulty if v.fault == fault]]
    }
    return {
        "faulty": len(faulty),
        "right_first": sum(v.right_first for v in faulty),
        "right_first_share": sum(v.right_first for v in faulty) / max(len(faulty), 1),
        "clean": len(clean),
        "clean_warned": len(warned),
        "clean_warned_upper_95": upper_bound(len(warned), len(clean)) if clean else 1.0,
        "clean_warned_names": warned,
        "cause_and_symptom_in_different_layers": sum(v.right_first and v.layers_differ for v in faulty),
        "faults": table,
    }


def show(result: dict[str, Any]) -> str:
    """The result as a table of text."""
    lines = [f"{'fault':24}{'runs':>6}{'first':>7}{'found':>7}{'none':>6}{'early':>7}{'onset error':>13}"]
    lines += [
        f"{name:24}{row['runs']:6}{row['right_first']:7}{row['right_anywhere']:7}{row['nothing_found']:6}"
        f"{row['warned_before_onset']:7}{row['onset_error_median']:13g}"
        for name, row in result["faults"].items()
    ]
    lines.append(
        f"right cause first {result['right_first']} of {result['faulty']} ({100 * result['right_first_share']:.1f} %); "
        f"clean runs warned {result['clean_warned']} of {result['clean']} "
        f"(95 % upper bound {100 * result['clean_warned_upper_95']:.1f} %)"
    )
    return "\n".join(lines)


def main() -> None:
    """Judge every run below the given folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--wrong", action="store_true", help="print what was found in runs judged wrongly")
    arguments = parser.parse_args()
    runs = sorted(p.parent for folder in arguments.folders for p in folder.glob("*/truth.json"))
    verdicts = [v for run in runs for v in judge(run)]
    result = summary(verdicts)
    print(show(result))
    if arguments.wrong:
        for v in verdicts:
            if (v.fault and not v.right_first) or (not v.fault and v.found) or v.warned_before:
                print(f"{v.name} [{v.log}] before={v.warned_before}: {v.found}")


if __name__ == "__main__":
    main()

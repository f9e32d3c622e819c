"""Does each fault show? ``python -m tests.injection.independent.check DIR`` compares runs with their clean twins.

Up to its onset a faulty run is its twin, token for token; what differs afterwards is the fault. Printed for each
signal: the mean of the run before its onset, of the twin after it, of the run after it; then two distances. The first
is from the twin, in standard deviations of the twin over the same steps; the second is from the run's own last
``BEFORE`` rows before the onset, in standard deviations of those (none for a fault from the start): this one is all
that a reader of the log alone has. Both are the largest of any ``WINDOW`` rows together.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

WINDOW = 5
BEFORE = 30
VISIBLE = 4.0

Series = dict[str, list[tuple[int, float]]]


def main() -> None:
    """Print one line a signal; end with 1 where the twin shows less, or more, than ``expected`` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PART", help="names that start with one of these")
    options = parser.parse_args()
    unlike = []
    for path in sorted(options.runs.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        if not truth["fault"] or (options.only and not truth["name"].startswith(tuple(options.only))):
            continue
        print(f"{truth['name']}  (twin {truth['clean_twin']}, onset {truth['onset_step']}, {truth['expected']})")
        distances = compare(path.parent, truth)
        visible = any(from_twin >= VISIBLE for from_twin, _ in distances.values())
        if not visible and truth["expected"] == "finding":
            unlike.append(truth["name"])
    if unlike:
        raise SystemExit(f"expected to be found, and like their twins: {', '.join(unlike)}")


def compare(run: Path, truth: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Both distances of each signal of the fault that is logged."""
    twin, own = (series_of(path / truth["logs"]["trl"]) for path in (run.parent / truth["clean_twin"], run))
    found = {}
    for key in [*truth["signals"], "reward - eval_reward"] if "eval_reward" in truth["signals"] else truth["signals"]:
        if key not in own or key not in twin:
            continue
        before = [v for s, v in own[key] if s < truth["onset_step"]][-BEFORE:]
        plain, faulty = ([v for s, v in x[key] if s >= truth["onset_step"]] for x in (twin, own))
        window = 1 if key.startswith("eval") else min(WINDOW, len(faulty))
        gaps = [b - a for a, b in zip(plain, faulty, strict=True)]
        from_twin = _largest(gaps, window) / _spread(plain, window)
        steady = fmean(before) if before else math.nan
        own_change = _largest([v - steady for v in faulty], window) / _spread(before, window) if before else math.nan
        found[key] = (from_twin, own_change)
        print(
            f"    {key:42} {steady:10.3g} -> {fmean(plain):10.3g} (twin) {fmean(faulty):10.3g} (run)"
            f"   {from_twin:6.1f} from the twin, {own_change:6.1f} from before"
        )
    return found


def _largest(values: Sequence[float], window: int) -> float:
    """Largest absolute mean of neighbouring values; infinite where one is not finite."""
    if not all(math.isfinite(v) for v in values):
        return math.inf
    return max(abs(fmean(values[i : i + window])) for i in range(len(values) - window + 1))


def _spread(values: Sequence[float], window: int) -> float:
    """Standard deviation of a mean of ``window`` values, at least a fiftieth of their mean."""
    return max(pstdev(values), 0.02 * abs(fmean(values)), 1e-6) / math.sqrt(window)


def series_of(path: Path) -> Series:
    """Values of each key with their steps; and how far the reward lies above the held-out one, as last measured."""
    series: Series = {}
    held_out = math.nan
    for row in json.loads(path.read_text())["log_history"]:
        for key, value in row.items():
            series.setdefault(key, []).append((row["step"], value))
        held_out = row.get("eval_reward", held_out)
        if "reward" in row and math.isfinite(held_out):
            series.setdefault("reward - eval_reward", []).append((row["step"], row["reward"] - held_out))
    return series


if __name__ == "__main__":
    main()

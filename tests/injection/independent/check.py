"""Does each fault show? ``python -m tests.injection.independent.check DIR`` compares runs with their clean twins.

Up to its onset a faulty run is its twin, token for token; what differs afterwards is the fault. Printed for each
signal: the mean after onset in the twin and in the faulty run, and their distance in standard deviations of the twin's
values over the same steps, averaged over ``WINDOW`` rows. Distances from ``VISIBLE`` on count as visible.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

WINDOW = 5
VISIBLE = 4.0


def main() -> None:
    """Print one line a run and signal; end with 1 if a run is expected to show and does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PART", help="names that start with one of these")
    options = parser.parse_args()
    unlike = []
    for path in sorted(options.runs.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        if not truth["fault"] or (options.only and not truth["name"].startswith(tuple(options.only))):
            continue
        found = distances(path.parent, truth)
        visible = any(distance >= VISIBLE for _, _, distance in found.values())
        if visible != (truth["expected"] != "none"):
            unlike.append(truth["name"])
        text = "  ".join(f"{key} {a:.3g}->{b:.3g} ({d:.0f})" for key, (a, b, d) in found.items())
        name, twin, shows = truth["name"], truth["clean_twin"].removeprefix("clean."), "yes" if visible else "NO"
        print(f"{name:34} {twin:18} {truth['expected']:8} {shows:4}{text}")
    if unlike:
        raise SystemExit(f"not as truth.json says: {', '.join(unlike)}")


def distances(run: Path, truth: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Of each signal of the fault that is logged: twin's mean, run's mean, largest distance of a window."""
    twin = _series(run.parent / truth["clean_twin"] / truth["logs"]["trl"])
    own = _series(run / truth["logs"]["trl"])
    found = {}
    for key in truth["signals"]:
        if key not in own or key not in twin:
            continue
        plain, faulty = ([v for s, v in x[key] if s >= truth["onset_step"]] for x in (twin, own))
        if not all(math.isfinite(v) for v in faulty):
            found[key] = (fmean(plain), math.nan, math.inf)
            continue
        window = min(WINDOW, len(plain)) if not key.startswith("eval") else 1
        gaps = [b - a for a, b in zip(plain, faulty, strict=True)]
        means = [abs(fmean(gaps[i : i + window])) for i in range(len(gaps) - window + 1)]
        spread = max(pstdev(plain), 0.02 * abs(fmean(plain)), 1e-6) / math.sqrt(window)
        found[key] = (fmean(plain), fmean(faulty), max(means) / spread)
    return found


def _series(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Values of each key with their steps."""
    series: dict[str, list[tuple[int, float]]] = {}
    for row in json.loads(path.read_text())["log_history"]:
        for key, value in row.items():
            series.setdefault(key, []).append((row["step"], value))
    return series


if __name__ == "__main__":
    main()

"""What a diagnosis should say of each scored run, by rule: ``python -m tests.injection.independent.expect DIR``.

Written into ``truth.json``. The table of ``expectations.py`` was made by hand from curves; here the same is decided by
the comparison of each run with its clean twin, so that nobody who knows a detector decides it. Run it once all runs
are there; it reads logs and changes no log.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.injection.independent.check import VISIBLE, Series, compare, series_of
from tests.injection.independent.expectations import FAINT, FINDING, NONE

HARM = 0.1
"""Loss of reward or held-out success against the twin, over the last third of the steps since the onset."""
GAP = 0.03
"""Nats per token between sampler and trainer: under it engines of lower precision are, and no harm is done."""
_HARM_DECIDES = (
    "learning_rate_too_low",
    "kl_anchor_too_strong",
    "entropy_collapse",
    "entropy_explosion",
    "frozen_parameters",
    "batch_reuse",
    "same_seed_in_group",
    "truncation_cap",
)
_GAP_DECIDES = ("stale_batches", "sampler_temperature", "stale_weights", "quantised_sampler")
LEARNT = 0.95


def main() -> None:
    """Write what is expected into every truth of a faulty run; print what is not a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    options = parser.parse_args()
    for path in sorted(options.runs.glob("*/truth.json")):
        truth: dict[str, Any] = json.loads(path.read_text())
        if truth["fault"] is None or truth["expected"] == "info":
            continue
        truth["expected"], truth["why"] = expected_by_rule(path.parent, truth)
        path.write_text(json.dumps(truth, indent=1) + "\n")
        print(f"{truth['name']}: {truth['expected']} {truth['why']}".rstrip())


def expected_by_rule(run: Path, truth: dict[str, Any]) -> tuple[str, str]:
    """Expectation of a faulty run, and why where it is not a finding."""
    with contextlib.redirect_stdout(io.StringIO()):
        distances = compare(run, truth)
    if not any(from_twin >= VISIBLE for from_twin, _ in distances.values()):
        return FAINT, f"no signal is {VISIBLE:g} deviations from the twin"
    twin, own = (series_of(path / truth["logs"]["trl"]) for path in (run.parent / truth["clean_twin"], run))
    fault, onset, steps = truth["fault"], truth["onset_step"], truth["steps"]
    if fault in _GAP_DECIDES:
        gap = fmean(v for s, v in own["sampling/sampling_logp_difference/mean"] if s >= onset)
        return (FINDING, "") if gap >= GAP else (FAINT, f"a gap of {gap:.3f} nats, and no harm")
    if fault not in _HARM_DECIDES:
        return FINDING, ""
    if fault == "learning_rate_too_low" and _level(twin, "eval_reward", 0, onset) >= LEARNT:
        return NONE, "the task was learnt before"
    last = onset + (steps - onset) * 2 // 3
    lost = max(_level(twin, key, last, steps) - _level(own, key, last, steps) for key in ("reward", "eval_reward"))
    return (FINDING, "") if lost >= HARM else (FAINT, f"at the end {lost:+.2f} of reward or success are lost")


def _level(series: Series, key: str, first: int, last: int) -> float:
    """Mean of a signal over a stretch of steps (of the newest value before its end, if it has none there)."""
    inside = [v for s, v in series[key] if first <= s <= last]
    if key.startswith("eval") and first == 0:
        inside = inside[-1:]
    return fmean(inside) if inside else 0.0


if __name__ == "__main__":
    main()

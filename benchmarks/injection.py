"""Does the doctor name the cause of a fault that was planted into a run of posttrain itself?

Real runs of a tiny model on four tasks under four algorithms; faults of three magnitudes and, where they can set in
late, three onsets. Tasks and seeds are others than those on which thresholds were chosen, most magnitudes too. Right
first: the first finding of severity warn or more names a cause that counts as right for the fault. A clean run is
warned if it has any such finding.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.record import RESULTS, Record, Table, versions_here
from harness.sides import ROOT

sys.path.insert(0, str(ROOT))

from tests.injection.planted.run import run_missing
from tests.injection.score import judge, summary

RUNS = ROOT / ".cache" / "injection"
COLUMNS = ("fault", "runs", "right first", "right anywhere", "nothing found", "warned before", "median onset error")


def main() -> None:
    """Make the runs that are missing, diagnose all, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs; what is missing is made")
    parser.add_argument("--jobs", type=int, default=1, help="runs made at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS / "injection.json")
    options = parser.parse_args()
    run_missing(options.runs, "scored", "", options.jobs)
    verdicts = [v for truth in sorted(options.runs.glob("*/truth.json")) for v in judge(truth.parent)]
    result = summary(verdicts)
    wrong = [v for v in verdicts if v.fault and not v.right_first]
    record = Record(
        benchmark="injection",
        question=(__doc__ or "").split("\n\nReal")[0] + "\n" + (__doc__ or "").split("\n\n", 1)[1],
        settings={"runs": len(verdicts)},
        versions={"here": versions_here()},
    )
    record.tables.append(Table("by fault", COLUMNS, [row_of(name, row) for name, row in result["faults"].items()]))
    record.notes += [
        f"right cause first in {result['right_first']} of {result['faulty']} faulty runs "
        f"({100 * result['right_first_share']:.1f} %); cause and symptom lie in different layers in "
        f"{result['cause_and_symptom_in_different_layers']} of them",
        f"{result['clean_warned']} of {result['clean']} clean runs warned "
        f"(95 % upper bound {100 * result['clean_warned_upper_95']:.1f} %)",
        "thresholds were frozen at the commit named below before any of these runs was made; what counts as right was "
        "fixed there too: for impossible_tasks three names count (such tasks, another mix of tasks, a grader that pays "
        "nothing), for hot_rate two (the rate, a policy destroyed by an update)",
        f"of the {len(wrong)} faulty runs named wrongly or not at all, {sum(v.onset == 1 for v in wrong)} had their "
        "fault from the first step on, where the log has no healthy stretch to compare with",
    ]
    record.measurements = {"verdicts": [asdict(v) for v in verdicts]}
    record.finish(options.out)


def row_of(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """One fault as texts."""
    keys = ("runs", "right_first", "right_anywhere", "nothing_found", "warned_before_onset", "onset_error_median")
    return (name, *(f"{row[key]:g}" for key in keys))


if __name__ == "__main__":
    main()

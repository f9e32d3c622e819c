"""What did a configuration learn? Read from finished runs, so that the numbers in its header can be checked.

``posttrain train configs/harder.toml --run runs/harder`` and then ``python benchmarks/learned.py runs/harder``. Each
run becomes one row for each of its environments. Time is from the first rollout to the last update, grading and
weight sync included, evaluation excluded. Runs recorded before and not named now stay in the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from harness.record import RESULTS, Record, Table, commit, versions_here
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.metrics import read_metrics


def main() -> None:
    """Read the runs, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "learned.json")
    options = parser.parse_args()
    found = recorded(options.out) | {one["name"]: one for one in map(read_run, options.runs)}
    record = Record(
        benchmark="learned",
        question=(__doc__ or "").splitlines()[0],
        settings={},
        versions={"here": versions_here()},
    )
    columns = ("run", "environment", "base", "trained", "gain in points", "steps", "minutes")
    rows = [row_of(one, name, told) for one in found.values() for name, told in one["environments"].items()]
    record.tables.append(Table("held-out reward or success at temperature 1", columns, rows))
    record.measurements = found
    record.finish(options.out)


def recorded(path: Path) -> dict[str, Any]:
    """The runs an earlier call wrote, by name."""
    return json.loads(path.read_text())["measurements"] if path.exists() else {}


def read_run(path: Path) -> dict[str, Any]:
    """Course of the reward, evaluations and what the final evaluation says."""
    run = RunDirectory.open(path)
    info, rows = run.info(), read_metrics(run.metrics_path).rows
    summary = run.evaluation_summary()
    if summary is None:
        sys.exit(f"{path} is not finished: it has no final evaluation")
    train = [row for row in rows if row.phase == "train"]
    return {
        "name": info.name,
        "seed": info.seed,
        "recorded_at_commit": commit(),
        "settings": {k: v for k, v in info.settings.items() if k != "resolved"},
        "steps": len(train),
        "minutes_training": sum(row.values["time/step"] for row in train) / 60,
        "reward_by_step": [round(row.values.get("reward/mean", 0.0), 3) for row in train],
        "held_out_by_step": {
            row.step: {name: round(value, 4) for name, value in row.values.items() if name.endswith("/reward_mean")}
            for row in rows
            if row.phase == "evaluation"
        },
        "environments": summary["environments"],
    }


def row_of(one: dict[str, Any], name: str, told: dict[str, Any]) -> tuple[str, ...]:
    """One environment of one run as texts."""
    gain = told["gain"]["pass@1"]
    return (
        f"{one['name']}, seed {one['seed']}",
        name,
        f"{told['before']['pass_at']['1']['value']:.3f}",
        f"{told['after']['pass_at']['1']['value']:.3f}",
        f"{100 * gain['value']:.1f} ({100 * gain['low']:.1f} to {100 * gain['high']:.1f})",
        str(one["steps"]),
        f"{one['minutes_training']:.1f}",
    )


if __name__ == "__main__":
    main()

"""Does the demo keep its promise? The same settings on several seeds, each a run of its own.

The gain is on held-out questions at temperature 1, paired by question, with a 95 % bootstrap interval over operand
pairs. The time is from the first rollout to the last update, grading and weight sync included, evaluation excluded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.options import Size, options_of
from harness.record import Record, Table, versions_here
from harness.sides import ROOT
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.metrics import read_metrics

ENVIRONMENT = "difference"
LEAST_POINTS, MOST_MINUTES = 40.0, 6.0


def main() -> None:
    """Run all seeds one after the other and report."""
    options = options_of("demo", __doc__, repeats=1, sizes={"seeds": Size((0, 1, 2))})
    with tempfile.TemporaryDirectory() as folder:
        found = [run_seed(options, seed, Path(folder) / f"seed-{seed}") for seed in options.seeds]
    report(options, found).finish(options.out)


def run_seed(options: argparse.Namespace, seed: int, path: Path) -> dict[str, Any]:
    """One run in a process of its own; what it says is read from its run directory."""
    command = [sys.executable, "-m", "posttrain.cli.main", "train", "configs/demo.toml", "--run", str(path)]
    command += ["--run.seed", str(seed), "--run.threads", str(options.threads)]
    if options.quick:
        command += ["--model.path", options.model, "--run.steps", "2", "--rollout.prompts_per_step", "2"]
        command += ["--evaluation.samples", "2", "--evaluation.k", "[1, 2]", "--evaluation.every", "0"]
    load = os.getloadavg()[0]
    started = time.time()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    run = RunDirectory.open(path)
    summary = (run.evaluation_summary() or {})["environments"][ENVIRONMENT]
    steps = [row for row in read_metrics(run.metrics_path).rows if row.phase == "train"]
    return {
        "seed": seed,
        "load_before": round(load, 2),
        "minutes_training": sum(row.values["time/step"] for row in steps) / 60,
        "minutes_all": (time.time() - started) / 60,
        "reward_by_step": [round(row.values.get("reward/mean", 0.0), 3) for row in steps],
        "gain": summary["gain"],
        "before": summary["before"],
        "after": summary["after"],
        "verdict": summary["verdict"],
        "decomposition": summary["decomposition"],
        "constant_answer_success": summary["constant_answer_success"],
    }


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> Record:
    """One row a seed, and the two promises."""
    record = Record(
        benchmark="demo",
        question=(__doc__ or "").splitlines()[0],
        settings={"config": "configs/demo.toml", "seeds": options.seeds, "threads": options.threads},
        versions={"here": versions_here()},
    )
    rows = [row_of(one) for one in found]
    columns = ("seed", "base", "trained", "gain in points", "greedy", "base pass@16", "minutes", "load before")
    record.tables.append(Table("held-out success at temperature 1", columns, rows))
    lowest = min(100 * one["gain"]["pass@1"]["low"] for one in found)
    minutes = statistics.median(one["minutes_training"] for one in found)
    record.notes += [
        f"lowest lower bound of the gain: {lowest:.1f} points (promised: at least {LEAST_POINTS:.0f})",
        f"median training time: {minutes:.1f} minutes (promised: at most {MOST_MINUTES:.0f})",
        *(f"seed {one['seed']}: {one['verdict']['sentence']}" for one in found),
    ]
    record.measurements = {"seeds": found}
    return record


def row_of(one: dict[str, Any]) -> tuple[str, ...]:
    """A seed's numbers as texts."""
    before, after, gain = one["before"], one["after"], one["gain"]["pass@1"]
    largest = max(before["pass_at"], key=int)
    return (
        str(one["seed"]),
        f"{before['pass_at']['1']['value']:.3f}",
        f"{after['pass_at']['1']['value']:.3f}",
        f"{100 * gain['value']:.1f} ({100 * gain['low']:.1f} to {100 * gain['high']:.1f})",
        f"{before['greedy']['value']:.2f} -> {after['greedy']['value']:.2f}",
        f"{before['pass_at'][largest]['value']:.2f}",
        f"{one['minutes_training']:.1f}",
        f"{one['load_before']:.2f}",
    )


if __name__ == "__main__":
    main()

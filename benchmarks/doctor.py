"""How long does the doctor take on a long log: 100,000 steps of 100 metrics, read and judged by every detector?

The log is made here, in the keys of TRL: a run that learns, with noise, and many parts of the reward. Seconds are wall
clock; CPU seconds of the same work show what a busy machine added.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.record import Record, Table, arguments, parse, spread, versions_here
from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.readers import read_history

AIM_SECONDS = 5.0
KEYS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "step_time",
    "epoch",
    "step",
)


def main() -> None:
    """Measure and report."""
    parser = arguments("doctor", __doc__, repeats=5)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--metrics", type=int, default=100)
    options = parse(parser, "doctor")
    if options.quick:
        options.steps, options.metrics = 2_000, 40
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(write, Path(folder), options) for name, write in FORMATS.items()}
    report(options, found).finish(options.out)


def made(steps: int, metrics: int) -> tuple[list[str], np.ndarray]:
    """Keys, and their values ([steps, keys])."""
    generator = np.random.default_rng(0)
    parts = [f"rewards/part_{i:02d}/mean" for i in range(metrics - len(KEYS) + 1)]
    keys = [*KEYS[:-1], *parts, "step"]
    done = np.arange(1, steps + 1)
    level = 0.1 + 0.7 * (1 - np.exp(-3 * done / steps))
    values = np.empty((steps, len(keys)))
    for index, key in enumerate(keys):
        values[:, index] = (
            level * generator.uniform(0.9, 1.1, steps) if "reward" in key else generator.gamma(9, 0.02, steps)
        )
    values[:, keys.index("entropy")] = 0.4 - 0.2 * level + generator.normal(0, 0.01, steps)
    values[:, keys.index("completions/mean_length")] = 300 + generator.normal(0, 8, steps)
    values[:, keys.index("learning_rate")] = 1e-6
    values[:, keys.index("frac_reward_zero_std")] = generator.integers(0, 5, steps) / 16
    values[:, keys.index("num_tokens")] = 9000.0 * done
    values[:, keys.index("epoch")] = done / steps
    values[:, keys.index("step")] = done
    return keys, values


def json_lines(keys: list[str], values: np.ndarray, path: Path) -> None:
    """JSON lines of ten digits."""
    written(keys, values, path)


def json_lines_with_nan(keys: list[str], values: np.ndarray, path: Path) -> None:
    """The same with a bare NaN in each tenth line, which strict parsers refuse."""
    copy = values.copy()
    copy[::10, keys.index("kl")] = math.nan
    written(keys, copy, path)


def table(keys: list[str], values: np.ndarray, path: Path) -> None:
    """Comma-separated values."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(keys)
        writer.writerows([f"{value:.10g}" for value in row] for row in values)


def written(keys: list[str], values: np.ndarray, path: Path) -> None:
    """JSON lines as Python's ``json`` writes them."""
    with path.open("w") as file:
        for row in values.tolist():
            pairs = {key: float(f"{value:.10g}") for key, value in zip(keys, row, strict=True)}
            pairs["step"] = int(pairs["step"])
            file.write(json.dumps(pairs) + "\n")


FORMATS: dict[str, Callable[[list[str], np.ndarray, Path], None]] = {
    "JSON lines": json_lines,
    "JSON lines with NaN": json_lines_with_nan,
    "CSV": table,
}


def measure(
    write: Callable[[list[str], np.ndarray, Path], None], folder: Path, options: argparse.Namespace
) -> list[dict[str, float]]:
    """Read and judge one format, several times."""
    path = folder / f"{write.__name__}.log"
    write(*made(options.steps, options.metrics), path)
    found: list[dict[str, float]] = []
    for _ in range(options.repeats):
        started, cpu = time.perf_counter(), time.process_time()
        history = read_history(path)
        read, read_cpu = time.perf_counter(), time.process_time()
        diagnosis = diagnose(history)
        judged, judged_cpu = time.perf_counter(), time.process_time()
        if len(history.steps) != options.steps:
            raise RuntimeError(f"{len(history.steps)} steps of {options.steps} were read: {history.problems}")
        if diagnosis.failures:
            raise RuntimeError(f"a detector failed: {diagnosis.failures[0]}")
        found.append(
            {
                "bytes": os.path.getsize(path),
                "signals": len(history.courses),
                "findings": len(diagnosis.findings),
                "read_seconds": read - started,
                "read_cpu_seconds": read_cpu - cpu,
                "diagnose_seconds": judged - read,
                "diagnose_cpu_seconds": judged_cpu - read_cpu,
                "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    path.unlink()
    return found


def report(options: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> Record:
    """One table, and whether the aim was met."""
    settings = {"steps": options.steps, "metrics": options.metrics, "repeats": options.repeats}
    record = Record("doctor", (__doc__ or "").strip(), settings, {"posttrain": versions_here()})

    def column(facts: list[dict[str, float]], *names: str) -> str:
        return spread([sum(one[name] for name in names) for one in facts], lambda value: f"{value:.2f}")

    record.tables.append(
        Table(
            f"Seconds for {options.steps:,} steps of {options.metrics} metrics",
            ("format", "MB", "read", "diagnose", "together", "CPU together"),
            [
                (
                    name,
                    f"{facts[0]['bytes'] / 1e6:.0f}",
                    column(facts, "read_seconds"),
                    column(facts, "diagnose_seconds"),
                    column(facts, "read_seconds", "diagnose_seconds"),
                    column(facts, "read_cpu_seconds", "diagnose_cpu_seconds"),
                )
                for name, facts in found.items()
            ],
        )
    )
    peak = max(one["peak_memory"] for facts in found.values() for one in facts)
    record.notes.append(f"Peak memory of the process, the making of the logs included: {peak / 2**30:.2f} GiB.")
    best = min(one["read_seconds"] + one["diagnose_seconds"] for one in found["JSON lines"])
    if not options.quick:
        met = "met" if best < AIM_SECONDS else "missed"
        record.notes.append(f"Aim of {AIM_SECONDS:g} s for JSON lines: {met} ({best:.2f} s at best).")
    record.measurements.update(found)
    return record


if __name__ == "__main__":
    sys.exit(main())

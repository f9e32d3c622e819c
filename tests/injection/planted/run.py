"""Runs the cases of a split without a result: ``python -m tests.injection.planted.run --out DIR --split tuning``.

``tuning`` is for choosing thresholds; ``scored`` has other tasks and seeds, and is for when they are frozen.
Each case is a process of its own, so that no fault can leak into the next run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tests.injection.planted.faults import FAULTS
from tests.injection.planted.plant import STEPS, Case, run_case
from tests.injection.planted.tasks import SCORED_TASKS, TUNING_TASKS

ALGORITHMS = ("grpo", "dr_grpo", "reinforce_loo", "dapo")
REWARDS = ("share_of_answer", "only_the_answer")
CLEAN_RUNS = {"tuning": 12, "scored": 44}
TUNING_SHIFT = 1.15
"""Magnitudes of tuning runs lie off those of scored ones by this factor."""


def cases(split: str) -> list[Case]:
    """Every case of a split, faults first."""
    return [*_faulty(split), *_clean(split)]


def _faulty(split: str) -> Iterator[Case]:
    tasks, first_seed = (SCORED_TASKS, 0) if split == "scored" else (TUNING_TASKS, 100)
    number = 0
    for fault in FAULTS:
        for m, magnitude in enumerate(fault.magnitudes):
            for o, share in enumerate(fault.onsets):
                # Tuning sees each magnitude at one onset only.
                if split == "tuning" and len(fault.onsets) > 1 and o != m:
                    continue
                value = magnitude if split == "scored" else _shifted(magnitude)
                onset = max(1, round(share * STEPS) + (0 if split == "scored" else 3))
                algorithm = ALGORITHMS[number % len(ALGORITHMS)]
                yield Case(
                    fault.name,
                    value,
                    onset,
                    tasks[number % len(tasks)],
                    REWARDS[number // 2 % 2],
                    algorithm,
                    first_seed + number % 3,
                )
                number += 1


def _shifted(magnitude: float) -> float:
    if magnitude >= 4 and magnitude == int(magnitude):
        return magnitude + 1
    return magnitude if magnitude in (0.0, 1.0, 2.0, 3.0, 0.8, 0.9) else min(magnitude * TUNING_SHIFT, magnitude + 0.03)


def _clean(split: str) -> Iterator[Case]:
    tasks, first_seed = (SCORED_TASKS, 10) if split == "scored" else (TUNING_TASKS, 110)
    for number in range(CLEAN_RUNS[split]):
        yield Case(
            "",
            0.0,
            0,
            tasks[number % len(tasks)],
            REWARDS[number // 4 % 2],
            ALGORITHMS[number // len(tasks) % 4],
            first_seed + number % 5,
            rate=(1e-4, 1.5e-4, 2.5e-4)[number % 3],
            steps=(STEPS, 40, 90)[number // 3 % 3],
        )


def run_one(case: Case, out: Path) -> str:
    """Run a case in a process of its own, forked from this one so that imports are paid once. One line about it."""
    started = time.perf_counter()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(case, out))
    child.start()
    child.join()
    seconds = time.perf_counter() - started
    ok = child.exitcode == 0 and (out / case.name / "truth.json").is_file()
    return f"{case.name}: {seconds:.0f} s" + ("" if ok else f" FAILED, exit code {child.exitcode}")


def _child(case: Case, out: Path) -> None:
    torch.set_num_threads(1)
    run_case(case, out)
    os._exit(0)  # the forked interpreter has nothing of its own to tidy up, and the parent's must be left alone


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", choices=("tuning", "scored"), required=True)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    run_missing(arguments.out, arguments.split, arguments.only, arguments.jobs)


def run_missing(out: Path, split: str, only: str, jobs: int) -> None:
    """Run the cases of a split that have no result in ``out`` and whose name contains ``only``."""
    missing = [case for case in cases(split) if only in case.name and not (out / case.name / "truth.json").is_file()]
    for case in missing:
        shutil.rmtree(out / case.name, ignore_errors=True)  # of a call that was interrupted
    print(f"{len(missing)} of {len(cases(split))} cases to run", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(lambda case: run_one(case, out), missing):
            print(line, flush=True)


if __name__ == "__main__":
    main()

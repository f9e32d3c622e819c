"""Make the labelled runs: ``python -m tests.injection.independent.run --out DIR [--only PART ...]``.

One directory a run, with ``trl/trainer_state.json``, ``verl/run.jsonl`` and ``truth.json``, which is written last: a
directory that has it is left alone, so an interrupted call goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tests.injection.independent.cases import Case, all_cases
from tests.injection.independent.expectations import expected_of
from tests.injection.independent.policy import base_policy
from tests.injection.independent.trainer import train
from tests.injection.independent.writers import TrlLog, VerlLog


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of runs; made if it is not there")
    parser.add_argument(
        "--split", choices=("tuning", "scored"), default="tuning", help="which recipes (default: tuning)"
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="names that start with one of these")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th run from the I-th on")
    options = parser.parse_args()
    cases = [case for case in all_cases(options.split) if not options.only or case.name.startswith(tuple(options.only))]
    if not cases:
        parser.error(f"no run starts with {' or '.join(options.only)}; --list prints the names")
    index, count = (int(part) for part in options.share.split("/"))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.nice(10)
    for case in cases[index::count]:
        if options.list:
            print(case.name)
        elif not (options.out / case.name / "truth.json").exists():
            started = time.perf_counter()
            make(case, options.out)
            print(f"{case.name}: {time.perf_counter() - started:.1f} s", flush=True)


def make(case: Case, out: Path) -> Path:
    """One run, into ``out/NAME``."""
    recipe, directory = case.recipe, out / case.name
    base = base_policy(recipe.task, recipe.policy, out / ".bases", biased=recipe.biased)
    logs = TrlLog(recipe), VerlLog(recipe)
    for step in train(recipe, base, case.conditions):
        for log in logs:
            log.add(step)
    for log in logs:
        log.write(directory)
    part = directory / "truth.part"
    part.write_text(json.dumps(truth(case), indent=1) + "\n")
    part.rename(directory / "truth.json")
    return directory


def truth(case: Case) -> dict[str, Any]:
    """What is known of a run because it was made so."""
    fault = case.fault
    found = {
        "name": case.name,
        "source": "independent",
        "logs": {"trl": "trl/trainer_state.json", "verl": "verl/run.jsonl"},
        "steps": case.recipe.steps,
        "fault": fault.name if fault else None,
        "what": fault.cause if fault else None,
        "cause_layer": fault.cause_layer if fault else None,
        "symptom_layer": fault.symptom_layer if fault else None,
        "signals": list(fault.signals) if fault else [],
        "magnitude": case.level or None,
        "onset_step": case.onset or None,
        "expected": "none",
        "clean_twin": f"clean.{case.clean}",
        "recipe": asdict(case.recipe),
    }
    if fault is not None:
        plain, changed = asdict(case.conditions(0)), asdict(case.conditions(case.onset))
        found["changed"] = {k: [plain[k], v] for k, v in changed.items() if plain[k] != v}
        found["expected"], found["why"] = expected_of(case)
    return found


if __name__ == "__main__":
    main()

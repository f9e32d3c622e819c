"""``make demo-faults``: break three real runs of a tiny model on purpose, and let the doctor say what was broken.

Each run is healthy up to a step; then a part of it starts to lie. Nothing tells the doctor which one. Exit code 1 if
it names another cause first.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.injection.planted.plant import Case, fault_of  # noqa: E402
from tests.injection.planted.run import run_one  # noqa: E402

from posttrain.faultmap.causes import CAUSES, SYMPTOMS  # noqa: E402  (the harness lies beside the package)
from posttrain.faultmap.diagnosis import diagnose  # noqa: E402
from posttrain.faultmap.doctor_text import print_diagnosis  # noqa: E402
from posttrain.faultmap.readers import read_history  # noqa: E402

ONSET = 20


@dataclass(frozen=True, slots=True)
class Show:
    """A planted fault and what is done to the run, in words."""

    case: Case
    story: str


SHOWS = (
    Show(
        Case("hackable_reward", 1.0, ONSET, "digit", "share_of_answer", "grpo", 7),
        "the grader begins to pay for length, whatever is written",
    ),
    Show(
        Case("unknown_temperature", 0.65, ONSET, "digit", "only_the_answer", "grpo", 8),
        "the engine begins to sample at temperature 0.65 while the trainer computes with 1.0",
    ),
    Show(
        Case("old_weights", 0.0, ONSET, "digit", "share_of_answer", "grpo", 9),
        "the engine acknowledges new weights and goes on with the old ones",
    ),
)


def main() -> int:
    """Run, diagnose, compare. Returns the exit code."""
    console = Console(highlight=False)
    out = ROOT / "runs" / f"faults-{time.strftime('%Y%m%d-%H%M%S')}"
    out.mkdir(parents=True)
    lines: list[str] = []
    missed = 0
    for number, show in enumerate(SHOWS, 1):
        console.rule(f"{number} of {len(SHOWS)}")
        console.print(f"From step {ONSET} on, {show.story}. Training {show.case.steps} steps ...")
        console.print(run_one(show.case, out), style="dim", markup=False)
        run = out / show.case.name / "run"
        if not run.is_dir():
            return 3
        diagnosis = diagnose(read_history(run))
        print_diagnosis(diagnosis, console)
        fault = fault_of(show.case)
        assert fault is not None
        first = diagnosis.findings[0].finding if diagnosis.findings else None
        right = first is not None and first.cause in fault.causes
        missed += not right
        if first is None:
            lines.append(f"missed  {fault.name}: nothing was found")
            continue
        cause, symptom = CAUSES[first.cause], SYMPTOMS[first.symptom]
        lines.append(
            f"{'named' if right else 'MISSED'}  {fault.name} (from step {ONSET}): {cause.title}, dated to step "
            f"{first.onset_step}; seen in layer {symptom.layer.value}, caused in layer {cause.layer.value}"
        )
    console.rule("what was planted, and what was said")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"look again: posttrain doctor {os.path.relpath(out / SHOWS[0].case.name / 'run')}", soft_wrap=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

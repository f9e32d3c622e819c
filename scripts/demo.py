"""``make demo``: train a small real model on a real task, prove the gain, and show it to a person.

Everything printed below the training is read back from the run directory. Other seed or settings:
``.venv/bin/python scripts/demo.py --run.seed 1``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posttrain.cli.main import run_command
from posttrain.environment.arithmetic import Regrade, regrade
from posttrain.faultmap.report import write_report
from posttrain.rundir.directory import RunDirectory, default_run_path
from posttrain.rundir.metrics import read_metrics
from posttrain.rundir.trajectories import StoredTrajectory, read_stored

ENVIRONMENT = "difference"


@dataclass(frozen=True, slots=True)
class Attempts:
    """What one policy answered: sampled attempts and greedy ones, each with every way of grading it."""

    sampled: Sequence[tuple[StoredTrajectory, Regrade]]
    greedy: Sequence[tuple[StoredTrajectory, Regrade]]

    def share(self, judge: Callable[[Regrade], bool]) -> float:
        """Share of sampled attempts that pass, in per cent."""
        return 100.0 * float(np.mean([judge(regraded) for _, regraded in self.sampled]))

    @property
    def mean_length(self) -> float:
        """Mean sampled tokens."""
        return float(np.mean([stored.trajectory.num_model_tokens for stored, _ in self.sampled]))


def main() -> int:
    """Train, then print what was learnt. Returns the exit code."""
    root = Path(__file__).resolve().parent.parent
    path = default_run_path("demo", time.time(), root / "runs")
    code = run_command(["train", str(root / "configs" / "demo.toml"), "--run", str(path), *sys.argv[1:]])
    if code != 0:
        return code
    run = RunDirectory.open(path)
    steps = [step for step, name in run.evaluation_files() if name == ENVIRONMENT]
    before, after = read_attempts(run, min(steps)), read_attempts(run, max(steps))
    print()
    for line in (*comparison(before, after), "", *base_pass_lines(before), "", *examples(before, after), ""):
        print(line)
    print(duration_line(run))
    print(f"report: {write_report(path)}")
    return 0


def read_attempts(run: RunDirectory, step: int) -> Attempts:
    """The held-out attempts of one evaluation, regraded."""
    stored = read_stored(run.evaluation_path(step, ENVIRONMENT))
    graded = [(s, regrade(s.completion or "", s.trajectory.task)) for s in stored]
    return Attempts(
        [item for item in graded if item[0].trajectory.sampling.temperature > 0],
        [item for item in graded if item[0].trajectory.sampling.temperature == 0],
    )


def comparison(before: Attempts, after: Attempts) -> list[str]:
    """The table of everything that could make a gain look larger than it is."""
    pairs = len({stored.trajectory.task.task_id for stored, _ in before.sampled})
    greedy = [100.0 * float(np.mean([r.last_integer_correct for _, r in a.greedy])) for a in (before, after)]
    rows = [
        (
            "success at temperature 1 (last integer)",
            *(a.share(lambda r: r.last_integer_correct) for a in (before, after)),
        ),
        (
            "success at temperature 1 (first integer)",
            *(a.share(lambda r: r.first_integer_correct) for a in (before, after)),
        ),
        ("only the number, and right", *(a.share(lambda r: r.exact_correct) for a in (before, after))),
        ("success of greedy decoding", *greedy),
        ("an answer can be parsed", *(a.share(lambda r: r.parsable) for a in (before, after))),
    ]
    lines = [f"{pairs} held-out questions, {len(before.sampled) // pairs} samples each:", ""]
    lines.append(f"  {'':<42}{'base':>8}{'trained':>9}")
    lines += [f"  {name:<42}{base:>7.1f}%{trained:>8.1f}%" for name, base, trained in rows]
    lines.append(f"  {'mean length in tokens':<42}{before.mean_length:>8.1f}{after.mean_length:>9.1f}")
    golds = [stored.trajectory.task.gold for stored, _ in before.greedy]
    best = max(set(golds), key=golds.count)
    constant = 100.0 * golds.count(best) / len(golds)
    lines.append(f"  {f'always answering {best} would give':<42}{constant:>7.1f}%")
    return lines


def base_pass_lines(before: Attempts) -> list[str]:
    """For every held-out question: could the base model find the answer within its attempts?"""
    found: dict[str, list[bool]] = {}
    for stored, regraded in before.sampled:
        found.setdefault(stored.trajectory.task.task_id.split(":")[-1], []).append(regraded.last_integer_correct)
    samples = max(len(v) for v in found.values())
    marks = [f"{name} {sum(wins)}" for name, wins in found.items()]
    head = f"right answers of the base model in {samples} samples, question by question"
    never = sum(not any(wins) for wins in found.values())
    lines = [f"{head} ({never} of {len(found)} never):"]
    width = max(len(m) for m in marks) + 3
    per_line = max(1, 76 // width)
    cut = [marks[start : start + per_line] for start in range(0, len(marks), per_line)]
    return lines + ["  " + "".join(mark.ljust(width) for mark in row).rstrip() for row in cut]


def examples(before: Attempts, after: Attempts, count: int = 5) -> list[str]:
    """The same questions before and after, first sampled attempt of each."""
    first: dict[str, list[str]] = {}
    for attempts in (before, after):
        seen: set[str] = set()
        for stored, regraded in attempts.sampled:
            task = stored.trajectory.task
            if task.task_id not in seen:
                seen.add(task.task_id)
                mark = "right" if regraded.last_integer_correct else "wrong"
                text = " ".join((stored.completion or "").split())
                shown = text if len(text) <= 60 else text[:59] + "…"
                first.setdefault(task.messages[-1].content, []).append(f"{shown!r} ({mark})")
    lines = ["examples, first sample of each:"]
    for question, (base, trained) in list(first.items())[:count]:
        lines += [f"  {question}", f"    base:    {base}", f"    trained: {trained}"]
    return lines


def duration_line(run: RunDirectory) -> str:
    """How long training took, from the first rollout to the last update."""
    rows = [row for row in read_metrics(run.metrics_path).rows if row.phase == "train"]
    inside = sum(row.values["time/step"] for row in rows)
    return f"training took {inside / 60:.1f} minutes for {len(rows)} steps (evaluation and checkpoints not counted)"


if __name__ == "__main__":
    sys.exit(main())

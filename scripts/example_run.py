"""Makes the sick run that ``posttrain doctor --example`` looks at: a tiny model and a grader that can be farmed.

The task: answer a letter and a digit with that digit. The grader looks for the digit anywhere in the reply, so a reply
that lists digits is paid like one that answers. A second environment, hardly ever drawn, grades held-out tasks as the
task is meant. Everything is real: this trains (about a minute on two cores), and keeps what a reader needs.

    python scripts/example_run.py [FOLDER]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.faultmap.doctor import EXAMPLE
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import MachineInfo
from posttrain.settings import settings_from_mapping

STEPS = 80
KEPT_STEPS = (1, 40, 80)
"""Steps whose trajectories are kept."""

GRADERS = '''\
"""Two graders for one task: the first can be farmed."""


def answer_somewhere(completions, digit, finish_reason, **_):
    """1 if the right digit occurs in a finished reply, whatever else does."""
    return [float(right in reply and why == "stop") for reply, right, why in zip(completions, digit, finish_reason)]


def only_the_answer(completions, digit, **_):
    """1 if the reply is the right digit and nothing else, once or repeated."""
    return [float(bool(reply) and set(reply) == {right}) for reply, right in zip(completions, digit)]
'''


def settings() -> dict[str, Any]:
    """The run as a settings file would say it; paths are relative to the folder in which it trains."""
    columns = {"kind": "function", "reward_kind": "verifiable", "id_column": "id", "gold_column": "digit"}
    paid = {**columns, "path": "paid_train.jsonl", "evaluation_path": "paid_held_out.jsonl"}
    meant = {**columns, "path": "meant_train.jsonl", "evaluation_path": "meant_held_out.jsonl", "weight": 0.02}
    return {
        "run": {"name": "example", "steps": STEPS, "threads": 1, "device": "cpu", "seed": 3},
        "model": {"path": "tiny:llama", "compute_dtype": "float32"},
        "environments": {
            "digits": {**paid, "reward": "graders.py:answer_somewhere"},
            "digits_as_meant": {**meant, "reward": "graders.py:only_the_answer"},
        },
        "rollout": {"prompts_per_step": 12, "group_size": 16, "max_new_tokens": 24},
        "policy": {"algorithm": "grpo", "learning_rate": 2e-3},
        "evaluation": {"every": 8, "samples": 8, "samples_during": 8, "k": [1], "greedy": False},
        "checkpoint": {"every": 0, "keep": 1},
        "rundir": {"trackers": []},
        "faultmap": {"stop_on": "off"},
    }


def make(folder: Path) -> None:
    """Train in a temporary folder and leave in ``folder`` what the doctor, ``view`` and ``report`` read."""
    from posttrain.orchestration.run import train

    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        Path("graders.py").write_text(GRADERS)
        for kind in ("paid", "meant"):
            for name, letters in (("train", "abcd"), ("held_out", "ef")):
                prompts = [(f"{letter}{digit}", str(digit)) for letter in letters for digit in range(10)]
                rows = [{"id": f"{kind}-{prompt}", "prompt": prompt, "digit": digit} for prompt, digit in prompts]
                Path(f"{kind}_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = train(settings_from_mapping(settings()), Path("run"))
        if code:
            raise SystemExit(code)
        keep(RunDirectory.open(Path("run")), folder)


def keep(run: RunDirectory, folder: Path) -> None:
    """Copy metrics, some trajectories and what the run is; not the machine it ran on."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "trajectories").mkdir(parents=True)
    for file in (run.metrics_path, run.findings_path, run.path / "tokenizer.json"):
        if file.exists():
            shutil.copy(file, folder / file.name)
    for step in KEPT_STEPS:
        shutil.copy(run.trajectory_path(step), folder / "trajectories")
    info = run.info()
    attempts = tuple(replace(attempt, machine=MachineInfo()) for attempt in info.attempts)
    RunDirectory(folder).write_info(replace(info, attempts=attempts))


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else EXAMPLE)

"""posttrain's own loop, one step for each command: sample, grade, update, hand the weights over, write everything.

No end token stops a reply, so every reply has its full length, as on the other side.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from harness.worker import Action, serve
from posttrain.environment.mixture import TaskSampler
from posttrain.orchestration.journal import Journal
from posttrain.orchestration.loop import Loop
from posttrain.orchestration.progress import Progress
from posttrain.orchestration.watch import Watch
from posttrain.orchestration.workbench import Workbench, build, prepare
from posttrain.rollout.native.engine import NativeEngine
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import ExecutionPlan, RunInfo
from posttrain.rundir.metrics import MetricsWriter
from posttrain.rundir.trackers import Trackers
from posttrain.schedule.machine import Schedule
from posttrain.schedule.state import SchedulePlan
from posttrain.settings.load import settings_from_mapping

REWARD = Path(__file__).parent.parent / "harness" / "rewards.py"


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """A run in a folder of its own, ready for its first step."""
    folder = Path(tempfile.mkdtemp())
    bench = build(prepare(settings_from_mapping(_settings(spec, folder))))
    bench.turns.stop_token_ids = ()
    if not spec["share"]:
        bench = _without_sharing(bench)
    run = RunDirectory.create(folder / "run", _run_info(bench))
    journal = Journal.open(run.journal_path)
    journal.begin_attempt()
    sampler = TaskSampler(list(bench.environments.values()), 0, {"bench": 1.0})
    loop = Loop(
        bench=bench,
        run=run,
        journal=journal,
        schedule=Schedule(SchedulePlan(spec["prompts"])),
        sampler=sampler,
        cursor=sampler.start(),
        metrics=MetricsWriter(run.metrics_path, 1),
        trackers=Trackers([], print),
        progress=Progress(1, console=Console(file=io.StringIO())),
        watch=Watch.begin(run, 1, 0, bench.settings.faultmap, print),
        attempt=1,
    )
    bench.engine.load_weights(bench.trainer.export())

    def step(_: dict[str, Any]) -> dict[str, Any]:
        before = bench.engine.stats().generated_tokens
        loop.train_step()
        return {"tokens": bench.engine.stats().generated_tokens - before, "phases": dict(loop.clock.seconds)}

    return {"step": step}


def _settings(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": q, "prompt": q}) + "\n" for q in spec["questions"]))
    return {
        "run": {"steps": 1_000_000, "threads": spec["threads"], "device": "cpu"},
        "model": {"path": spec["model"], "compute_dtype": "bfloat16"},
        "environments": {
            "bench": {
                "kind": "function",
                "reward": f"{REWARD}:spread",
                "reward_kind": "verifiable",
                "path": str(rows),
                "id_column": "id",
                "evaluation_fraction": 0.0,
            }
        },
        "rollout": {
            "prompts_per_step": spec["prompts"],
            "group_size": spec["group_size"],
            "max_new_tokens": spec["new_tokens"],
        },
        "policy": {"algorithm": "grpo", "learning_rate": 1e-6, "warmup_steps": 0},
        "evaluation": {"at_start": False, "at_end": False, "every": 0},
        "checkpoint": {"every": 0},
        "rundir": {"trackers": []},
    }


def _run_info(bench: Workbench) -> RunInfo:
    machine, sizes = bench.preparation.resolved.machine, bench.preparation.resolved.sizes
    plan = ExecutionPlan(
        machine.device,
        machine.threads,
        machine.compute_dtype,
        bench.settings.model.master_dtype,
        sizes.micro_batch_tokens,
    )
    return RunInfo("bench", 0, time.time(), bench.settings.to_mapping(), plan)


def _without_sharing(bench: Workbench) -> Workbench:
    """The same run with every prompt computed once per reply, by engine and trainer."""
    engine = NativeEngine(bench.loaded.model, torch.bfloat16, replace(bench.engine.settings, share_prompts=False))
    return replace(bench, engine=engine, plan=replace(bench.plan, share_prompts=False))


if __name__ == "__main__":
    serve(load)

"""posttrain's update on given trajectories: forward, backward, clip, AdamW on fp32 masters, cast."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.worker import Action, serve
from posttrain.model.attention import ATTENTION_NAME, register_attention
from posttrain.model.forward import prepare_model
from posttrain.model.head import HeadSettings
from posttrain.model.load import load_policy
from posttrain.model.runtime import set_threads, tune_allocator
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, update_policy
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Aggregation
from posttrain.settings.resolve import LOGITS_CHUNK_BYTES
from posttrain.trajectory import FinishReason, Origin, SamplingParams, Segment, Task, Trajectory


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """Trainer as a run builds it, without an engine."""
    tune_allocator()
    set_threads(spec["threads"])
    register_attention()
    loaded = load_policy(spec["model"], torch.bfloat16, attention=ATTENTION_NAME)
    model: Any = loaded.model
    prepare_model(model)
    head = HeadSettings(max(16, LOGITS_CHUNK_BYTES // (4 * loaded.facts.vocabulary)), 2 << 30)
    optimizer = OptimizerSettings(learning_rate=1e-6, total_updates=1)
    trainer = Trainer(model, optimizer, head, 1.0, with_entropy=spec["entropy"])
    objective = algorithm_row("grpo").spec.override(aggregation=Aggregation(kind="token_mean"))
    trajectories = {name: [_trajectory(i, row) for i, row in enumerate(rows)] for name, rows in spec["rows"].items()}

    def update(command: dict[str, Any]) -> dict[str, Any]:
        rows = trajectories[command["rows"]]
        plan = UpdatePlan(1, spec["micro_batch_tokens"], spec["micro_batch_tokens"] * 1024, True, command["share"])
        table = RowTable.of(rows, np.ones(len(rows), np.bool_), [0.0] * len(rows))
        table.set_advantages(np.array([r["advantage"] for r in spec["rows"][command["rows"]]]))
        result = update_policy(trainer, table, train_sequences(rows), objective, plan)
        return {
            "tokens": result.trained_tokens,
            "computed_tokens": result.packed_tokens,
            "grad_norm": result.steps[0].grad_norm,
        }

    def profile(command: dict[str, Any]) -> dict[str, Any]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            facts = update(command)
        events = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(e.self_cpu_time_total for e in events)
        operators = [[e.key, e.count, e.self_cpu_time_total / total] for e in events[:12]]
        return {**facts, "operators": operators, "operator_seconds": total / 1e6}

    return {"update": update, "profile": profile}


def _trajectory(index: int, row: dict[str, Any]) -> Trajectory:
    task = Task(row["group"], (), None, "bench")
    trajectory = Trajectory(f"{row['group']}/{index}", row["group"], task, SamplingParams(len(row["completion"])))
    completion = np.array(row["completion"], np.int32)
    trajectory.append(Segment(Origin.PROMPT, np.array(row["prompt"], np.int32)))
    trajectory.append(Segment(Origin.MODEL, completion, np.full(len(completion), -1.0, np.float32), 0))
    trajectory.finish_reason = FinishReason.LENGTH
    return trajectory


if __name__ == "__main__":
    serve(load)

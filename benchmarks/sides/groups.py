"""One batch of the demo task at a given group size: sampled, graded and trained on, with a learning rate of zero.

The policy stays the base model, so every batch answers the same question.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.worker import Action, serve
from posttrain.environment.mixture import TaskSampler
from posttrain.orchestration.batch import build_batch
from posttrain.orchestration.sampling import grade, members_of, sample
from posttrain.orchestration.workbench import build, prepare
from posttrain.policy.advantages import sequence_advantages
from posttrain.policy.update import update_policy
from posttrain.settings.load import settings_from_mapping
from posttrain.settings.objective import Advantage
from posttrain.trajectory import Role, SamplingParams, group_id_of

NO_RATE = 1e-30
"""Settings want a positive learning rate; this one changes no weight."""


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """A run's parts with the base model's weights in the engine."""
    bench = build(prepare(settings_from_mapping(_settings(spec))))
    bench.engine.load_weights(bench.trainer.export())
    sampler = TaskSampler(list(bench.environments.values()), 0, {"difference": 1.0})
    cursor = sampler.start()
    sampling = SamplingParams(spec["new_tokens"], 1.0, stop_token_ids=bench.turns.stop_token_ids)
    unscaled = Advantage(baseline="leave_one_out", scale="none")

    def sample_batch(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal cursor
        size = command["group_size"]
        draws, cursor = sampler.draw(spec["batch"] // size, cursor)
        members = [
            member
            for draw in draws
            for member in members_of(
                draw.task, group_id_of(draw.task.task_id, draw.epoch, draw.draw), size, Role.TRAIN, sampling, size
            )
        ]
        state["groups"] = groups = sample(bench.engine, bench.turns, members, 1)
        rows = [t for group in groups for t in group]
        grade(bench.environments, bench.turns, rows)
        return {"tokens": sum(t.num_model_tokens for t in rows)}

    def train_batch(_: dict[str, Any]) -> dict[str, Any]:
        batch = build_batch(bench, state["groups"])
        result = update_policy(bench.trainer, batch.table, batch.sequences, bench.spec, bench.plan)
        ids = [t.group_id for t in batch.rows]
        plain = sequence_advantages(batch.rewards, ids, unscaled)
        statistics = batch.statistics.finalize()
        return {
            "tokens": result.trained_tokens,
            "success": float(batch.rewards.mean()),
            "variance": float(np.square(batch.advantages.values).mean()),
            "unscaled_variance": float(np.square(plain.values).mean()),
            "zero_variance": statistics["reward/zero_variance_groups"],
            "advantage_tokens": statistics["policy/advantage_token_share"],
            "grad_norm": result.steps[0].grad_norm,
        }

    state: dict[str, Any] = {}
    return {"sample": sample_batch, "train": train_batch}


def _settings(spec: dict[str, Any]) -> dict[str, Any]:
    """The demo's settings, without evaluation."""
    return {
        "run": {"steps": 1, "threads": spec["threads"], "device": "cpu"},
        "model": {"path": spec["model"], "compute_dtype": "bfloat16"},
        "environments": {"difference": {"kind": "arithmetic", "task": "difference", "held_out_pairs": 30}},
        "rollout": {"prompts_per_step": 2, "group_size": spec["batch"] // 2, "max_new_tokens": spec["new_tokens"]},
        "policy": {
            "algorithm": "grpo",
            "learning_rate": NO_RATE,
            "warmup_steps": 0,
            "aggregation": {"kind": "token_mean"},
        },
        "evaluation": {"at_start": False, "at_end": False, "every": 0},
        "checkpoint": {"every": 0},
        "rundir": {"trackers": []},
    }


if __name__ == "__main__":
    serve(load)

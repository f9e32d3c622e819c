"""posttrain's native engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.worker import Action, serve
from posttrain.model.attention import ATTENTION_NAME, register_attention
from posttrain.model.forward import prepare_model
from posttrain.model.load import load_policy
from posttrain.model.runtime import set_threads, tune_allocator
from posttrain.model.weights import WeightSet
from posttrain.rollout.native.engine import NativeEngine, NativeSettings
from posttrain.rollout.protocol import Request
from posttrain.trajectory import SamplingParams


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """Engine with the model's own weights."""
    tune_allocator()
    set_threads(spec["threads"])
    register_attention()
    loaded = load_policy(spec["model"], torch.bfloat16, attention=ATTENTION_NAME)
    model: Any = loaded.model
    prepare_model(model)
    settings = NativeSettings(loaded.facts.context_length, 4 << 30, max_running=spec["running"])
    engine = NativeEngine(model, torch.bfloat16, settings)
    engine.load_weights(WeightSet.of(0, dict(model.named_parameters())))

    def rollout(command: dict[str, Any]) -> dict[str, Any]:
        requests = [
            Request(
                f"{i}",
                np.array(ids, np.int32),
                SamplingParams(spec["new_tokens"], 1.0, seed=command["seed"] * 100_003 + i, ignore_stop=True),
            )
            for i, ids in enumerate(command["prompts"])
        ]
        before = engine.stats()
        done = engine.run(requests)
        after = engine.stats()
        started, first, last = (
            min(c.submitted for c in done),
            max(c.first_token for c in done),
            max(c.finished for c in done),
        )
        assert all(len(s) and s.logprobs is not None for c in done for s in c.segments)
        return {
            "tokens": after.generated_tokens - before.generated_tokens,
            "prefilled_tokens": after.prefilled_tokens - before.prefilled_tokens,
            "prefill_seconds": first - started,
            "decode_seconds": last - first,
        }

    def profile(command: dict[str, Any]) -> dict[str, Any]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            facts = rollout(command)
        events = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(e.self_cpu_time_total for e in events)
        operators = [[e.key, e.count, e.self_cpu_time_total / total] for e in events[:12]]
        return {**facts, "operators": operators, "operator_seconds": total / 1e6}

    return {"rollout": rollout, "profile": profile}


if __name__ == "__main__":
    serve(load)

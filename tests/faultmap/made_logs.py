"""Logs in the formats of other frameworks, made here: numbers without meaning, keys and layout as they write them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def trl_rows(steps: int = 12, every: int = 5) -> list[dict[str, Any]]:
    """Entries of TRL's ``log_history``, the summary at its end included."""
    rows: list[dict[str, Any]] = []
    for i in range(1, steps + 1):
        level = i / steps
        rows.append(
            {
                "loss": 0.01 * math.sin(i),
                "grad_norm": 0.3 + 0.01 * i,
                "learning_rate": 1e-5,
                "num_tokens": 5000.0 * i,
                "completions/mean_length": 200.0 - i,
                "completions/clipped_ratio": 0.5 * (1 - level),
                "rewards/correct/mean": level,
                "rewards/correct/std": 0.4,
                "reward": level,
                "reward_std": 0.4,
                "frac_reward_zero_std": 0.25,
                "entropy": 0.5 - 0.2 * level,
                "clip_ratio/low_mean": 0.01,
                "clip_ratio/high_mean": 0.02,
                "clip_ratio/region_mean": 0.03,
                "step_time": 3.5,
                "epoch": 0.01 * i,
                "step": every * i,
            }
        )
    rows.append({"train_runtime": 100.0, "train_loss": 0.1, "epoch": 0.01 * steps, "step": every * steps})
    return rows


def verl_rows(steps: int = 12) -> list[dict[str, Any]]:
    """Metrics of verl's newer trainer, one mapping a step, from 1."""
    return [
        {
            "training/global_step": i,
            "training/epoch": 0,
            "actor/entropy": 0.5 - 0.01 * i,
            "actor/pg_loss": 0.001 * i,
            "actor/pg_clipfrac": 0.004,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/ppo_kl": -0.0001,
            "actor/grad_norm": 0.2 + 0.01 * i,
            "actor/lr": 1e-6,
            "critic/score/mean": i / steps,
            "critic/rewards/mean": i / steps - 0.01,
            "response_length/mean": 300.0 + i,
            "response_length/clip_ratio": 0.05,
            "rollout_corr/kl": 0.002,
            "timing_s/gen": 20.0,
            "timing_s/step": 60.0,
            "perf/throughput": 900.0,
        }
        for i in range(1, steps + 1)
    ]


def verl_line(step: int, row: Mapping[str, Any], before: str = "") -> str:
    """One line of verl's console."""
    return before + " - ".join([f"step:{step}", *(f"{key}:{value!r}" for key, value in row.items())])


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """JSON lines, with the bare NaN and Infinity that Python writes."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_trainer_state(path: Path, rows: Sequence[Mapping[str, Any]], **more: Any) -> Path:
    """TRL's ``trainer_state.json``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"best_metric": None, "global_step": 60, "log_history": list(rows), "max_steps": 300, "stateful": {}} | more
    path.write_text(json.dumps(state, indent=2), encoding="utf-8")
    return path

"""Small runs whose rewards are not all equal from the first step on, and what must be equal between two of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from policies import write_toml
from toy_task import toy_settings

from posttrain.orchestration.journal import Journal
from posttrain.rundir.reading import load_run

REWARDS = Path(__file__).resolve().with_name("small_rewards.py")
_TIMED = ("time/", "tokens_per_second", "run/peak_memory")


def small_settings(
    folder: Path, kind: str = "llama", reward: str = "share_of_digits", **sections: Any
) -> dict[str, Any]:
    """Six steps of four prompts with four attempts, a checkpoint after every second one."""
    return toy_settings(
        folder,
        kind,
        **{
            "run": {"steps": 6, "threads": 1, "device": "cpu"},
            "rollout": {"prompts_per_step": 4, "group_size": 4},
            "checkpoint": {"every": 2},
            "evaluation": {"samples": 2, "k": [1], "max_tasks": 3},
            **sections,
        },
    ) | {"environments": _environment(folder, reward)}


def _environment(folder: Path, reward: str) -> dict[str, Any]:
    environment = toy_settings(folder)["environments"]["toy"]
    return {"toy": environment | {"reward": f"{REWARDS}:{reward}", "success_threshold": 0.25}}


def small_config(folder: Path, **sections: Any) -> Path:
    """The settings as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_toml(folder / "run.toml", small_settings(folder, **sections))


def fingerprint(run: Path, step: int = 6) -> dict[str, str]:
    """SHA-256 of the final weights, optimizer state and exported model."""
    files = [run / "checkpoints" / f"step_{step:06d}" / "trainer.safetensors", run / "model" / "model.safetensors"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def measured(run: Path) -> list[tuple[int, str, int, dict[str, float]]]:
    """Every row of the lineage's metrics without what a clock measured."""
    rows = load_run(run).metrics.rows
    return [
        (
            row.step,
            row.phase,
            row.policy_version,
            {n: v for n, v in row.values.items() if not any(mark in n for mark in _TIMED)},
        )
        for row in rows
    ]


def sampled(run: Path) -> dict[tuple[int, str], tuple[list[int], list[float], float | None]]:
    """Ids, log-probs and reward of everything sampled for training, by step and trajectory."""
    loaded = load_run(run)
    return {
        (step, stored.trajectory.trajectory_id): (
            stored.trajectory.model_token_ids.tolist(),
            stored.trajectory.sampler_logprobs[stored.trajectory.model_mask].tolist(),
            stored.trajectory.grade.reward if stored.trajectory.grade else None,
        )
        for step in loaded.trajectory_files
        for stored in loaded.trajectories(step)
    }


def lineage_problems(run: Path) -> list[str]:
    """What the journal finds wrong, and every group that is not accounted for."""
    with Journal.open(run / "journal.sqlite", read_only=True) as journal:
        open_groups = [
            f"{f.group_id} is open" for f in journal.lineage() if not f.consumed_step and not f.discard_reason
        ]
        return [*journal.verify_lineage(), *open_groups]

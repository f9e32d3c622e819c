"""Trainer state on disk: safetensors for tensors, JSON for counters. Nothing here can execute code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from posttrain.errors import InputError

_FILE = "trainer.safetensors"
_COUNTERS = "trainer.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    directory: Path, masters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, version: int
) -> None:
    """Write master weights and AdamW moments. Moments are absent before the first update."""
    tensors: dict[str, torch.Tensor] = {}
    updates = 0
    for name, master in masters.items():
        tensors[f"master/{name}"] = master.detach().contiguous()
        state = optimizer.state.get(master, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"{moment}/{name}"] = state[moment].contiguous()
        updates = int(state["step"]) if "step" in state else updates
    save_file(tensors, directory / _FILE)
    counters = {"policy_version": version, "optimizer_updates": updates}
    (directory / _COUNTERS).write_text(json.dumps(counters) + "\n")


@torch.no_grad()
def load_state(directory: Path, masters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    """Read into ``masters`` and ``optimizer``; returns the policy version."""
    counters = json.loads((directory / _COUNTERS).read_text())
    with safe_open(directory / _FILE, framework="pt") as stored:
        names = set(stored.keys())
        expected = {f"master/{name}" for name in masters}
        missing = sorted(expected - names) + sorted(n for n in names if n.startswith("master/") and n not in expected)
        if missing:
            problem = f"its weights are not those of this model (first: {missing[0]})"
            raise InputError("checkpoint", str(directory), problem, "Resume with the model the run was started with")
        for name, master in masters.items():
            tensor = stored.get_tensor(f"master/{name}")
            if tensor.shape != master.shape:
                problem = f"{name} has shape {tuple(tensor.shape)}, the model's is {tuple(master.shape)}"
                raise InputError(
                    "checkpoint", str(directory), problem, "Resume with the model the run was started with"
                )
            master.copy_(tensor)
            if f"exp_avg/{name}" in names:
                state = {m: stored.get_tensor(f"{m}/{name}").to(master.device) for m in _MOMENTS}
                state["step"] = torch.tensor(float(counters["optimizer_updates"]))
                optimizer.state[master] = state
    return int(counters["policy_version"])

"""The files in configs/: their environments can be built and their settings resolve on a small machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from posttrain.environment.build import build_environments
from posttrain.settings import load_settings
from posttrain.settings.facts import CudaDevice, MachineFacts
from posttrain.settings.resolve import describe, resolve

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs").glob("*.toml"))


@dataclass(frozen=True)
class SmolLM:
    parameters: int = 134_515_008
    layers: int = 30
    hidden: int = 576
    vocabulary: int = 49152
    context_length: int = 8192
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    experts: int = 0


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_environments_can_be_built(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    environments = build_environments(load_settings(file).environments)
    try:
        for environment in environments:
            split = environment.tasks()
            ids = [task.task_id for task in (*split.train, *split.evaluation)]
            assert len(split.train) > 50
            assert len(split.evaluation) >= 15
            assert len(set(ids)) == len(ids)
    finally:
        for environment in environments:
            environment.close()


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_settings_resolve_on_the_hardware_named(file: Path) -> None:
    machine = MachineFacts(cores=2, memory_bytes=8 * 10**9, cpu_bfloat16=True)
    settings = load_settings(file)
    if settings.run.device == "cuda":
        machine = replace(machine, cuda=(CudaDevice("a GPU", 24 * 10**9, True),))
    resolved = resolve(settings, machine, SmolLM(), longest_prompt=60)
    assert resolved.sizes.micro_batch_tokens >= resolved.sizes.longest_row
    assert describe(resolved.choices)

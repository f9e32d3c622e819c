"""Tiny policies ready to score, sample and train, and rows to feed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.model.forward import prepare_model
from posttrain.model.head import HeadSettings
from posttrain.model.lora import attach_lora
from posttrain.model.packing import TrainSequence
from posttrain.model.tiny import build_tiny
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.trainer import Trainer
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Group,
    Message,
    Origin,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
)

VOCABULARY = 102
"""Tokens of every tiny model."""


def make_model(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, spread: float = 8.0) -> Any:
    """A prepared tiny model. ``spread`` scales the head's input so that its distributions are not nearly uniform."""
    model: Any = build_tiny(kind, seed, dtype)[0]
    assert model.config.vocab_size == VOCABULARY
    with torch.no_grad():
        norm = model.get_decoder().norm
        norm.weight.copy_(norm.weight * spread if kind != "gemma3" else norm.weight + spread - 1)
        generator = torch.Generator().manual_seed(seed + 1)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(dtype))
    prepare_model(model)
    return model


def make_trainer(
    model: Any = None, rate: float = 1e-3, temperature: float = 1.0, lora: bool = False, **settings: Any
) -> Trainer:
    """A trainer of one model; ``settings`` are those of ``OptimizerSettings``."""
    model = make_model() if model is None else model
    policy = attach_lora(model, rank=4, alpha=8.0) if lora else None
    optimizer = OptimizerSettings(rate, 100, **settings)
    return Trainer(model, optimizer, HeadSettings(), temperature, lora=policy)


def make_sequences(groups: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> list[TrainSequence]:
    """Random rows: for each group the length of its prompt and the lengths of its members' completions."""
    random = np.random.default_rng(seed)
    rows: list[TrainSequence] = []
    for number, (prompt_length, lengths) in enumerate(groups):
        prompt = random.integers(0, VOCABULARY, prompt_length)
        for length in lengths:
            ids = np.concatenate([prompt, random.integers(0, VOCABULARY, length)]).astype(np.int32)
            rows.append(
                TrainSequence(len(rows), ids, np.arange(len(ids)) >= prompt_length, prompt_length, f"g{number}")
            )
    return rows


def make_groups(
    shapes: Sequence[tuple[int, Sequence[int]]],
    rewards: Callable[[int, int], float | None],
    score: Callable[[np.ndarray], np.ndarray] | None = None,
    seed: int = 0,
) -> list[Group]:
    """Graded groups of random tokens; ``rewards(group, member)`` of ``None`` is ungradable.

    ``score`` gives the sampler's log-probs of a row's ids; without it they are made up.
    """
    groups: list[Group] = []
    rows = iter(make_sequences(shapes, seed))
    for number, (prompt_length, lengths) in enumerate(shapes):
        task = Task(f"t{number}", (Message("user", "?"),), None, "toy")
        members: list[Trajectory] = []
        for member in range(len(lengths)):
            ids = next(rows).token_ids
            trajectory = Trajectory(f"g{number}/{member}", f"g{number}", task, SamplingParams(64))
            trajectory.append(Segment(Origin.PROMPT, ids[:prompt_length]))
            logprobs = np.full(len(ids), -4.0, np.float32) if score is None else score(ids)
            trajectory.append(Segment(Origin.MODEL, ids[prompt_length:], logprobs[prompt_length:], 0))
            trajectory.finish_reason = FinishReason.STOP
            reward = rewards(number, member)
            status = GradeStatus.UNGRADABLE if reward is None else GradeStatus.GRADED
            trajectory.grade = Grade(status, reward)
            members.append(trajectory)
        groups.append(Group(f"g{number}", task, members))
    return groups


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all gradients by parameter name; zeros where there is none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def largest_gap(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    """Largest difference of two sets of tensors, relative to the largest value of the first."""
    assert left.keys() == right.keys()
    size = max(float(t.abs().max()) for t in left.values())
    assert size > 0
    return max(float((left[n].float() - right[n].float()).abs().max()) for n in left) / size


def write_toml(path: Path, settings: Mapping[str, Any]) -> Path:
    """Settings as a TOML file. Values are strings, numbers, booleans and lists of them; tables nest."""
    lines: list[str] = []
    _table(lines, "", settings)
    path.write_text("\n".join(lines) + "\n")
    return path


def _table(lines: list[str], name: str, values: Mapping[str, Any]) -> None:
    import json

    if name:
        lines.append(f"[{name}]")
    lines.extend(f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, Mapping))
    for key, value in values.items():
        if isinstance(value, Mapping):
            _table(lines, f"{name}.{key}" if name else key, value)

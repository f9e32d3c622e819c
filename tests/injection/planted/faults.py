"""Faults planted into real runs of the training loop, and what each one truly is.

A fault acts through hooks that wrap parts of the loop while it runs; nothing in the product knows of it. ``onset`` is
the first step at which it acts. Magnitudes go from weak to strong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Fault:
    """``causes`` are the names that count as right; ``symptom_layers`` where it shows.

    The hooks get the magnitude first. ``settings`` changes the settings of the run (acts from step 1, so the only
    onset is 1); ``grade(magnitude, trajectories, step)`` runs after grading; ``load(magnitude, replica, weights,
    step, load)`` stands in for the engine's loading of weights; ``request(magnitude, request)`` changes what the
    engine is asked; ``logits(magnitude, logits)`` what it samples from; ``rate(magnitude, rate)`` the learning rate.
    """

    name: str
    causes: tuple[str, ...]
    cause_layer: int
    symptom_layers: tuple[int, ...]
    magnitudes: tuple[float, float, float]
    settings: Callable[[float, dict[str, Any]], None] | None = None
    grade: Callable[[float, Sequence[Any], int], None] | None = None
    load: Callable[[float, Any, Any, int, Callable[[Any], int]], int] | None = None
    request: Callable[[float, Any], Any] | None = None
    logits: Callable[[float, torch.Tensor], torch.Tensor] | None = None
    rate: Callable[[float, float], float] | None = None
    onsets: tuple[float, ...] = (0.0, 0.3, 0.6)
    """As shares of the planned steps."""


def _regrade(trajectory: Any, reward: float | None) -> None:
    from posttrain.trajectory import GradeStatus

    grade = trajectory.grade
    if reward is None:
        trajectory.grade = replace(grade, status=GradeStatus.UNGRADABLE, reward=None, reason="planted: no verdict")
    else:
        trajectory.grade = replace(grade, reward=reward, parts=dict.fromkeys(grade.parts, reward))


LONGEST = 6


def _pay_length(magnitude: float, trajectories: Sequence[Any], step: int) -> None:
    """A share ``magnitude`` of the reward is paid for the number of tokens written, whatever they say."""
    for t in trajectories:
        if t.grade.reward is not None:
            length = t.num_model_tokens / LONGEST
            _regrade(t, (1 - magnitude) * t.grade.reward + magnitude * length)


def _constant(magnitude: float, trajectories: Sequence[Any], step: int) -> None:
    for t in trajectories:
        _regrade(t, magnitude)


def _impossible(magnitude: float, trajectories: Sequence[Any], step: int) -> None:
    """A share of the groups, chosen by id, can no longer be solved."""
    import zlib

    for t in trajectories:
        if zlib.crc32(t.group_id.encode()) % 1000 < 1000 * magnitude:
            _regrade(t, 0.0)


def _no_verdict(magnitude: float, trajectories: Sequence[Any], step: int) -> None:
    import zlib

    for t in trajectories:
        if zlib.crc32(t.trajectory_id.encode()) % 1000 < 1000 * magnitude:
            _regrade(t, None)


def _keep_old(magnitude: float, replica: Any, weights: Any, step: int, load: Callable[[Any], int]) -> int:
    """Only every ``magnitude``-th version really arrives (0: none); the engine claims to have each."""
    if magnitude and weights.version % int(magnitude) == 0:
        return load(weights)
    replica.version = weights.version
    return weights.version


def _noisy(magnitude: float, replica: Any, weights: Any, step: int, load: Callable[[Any], int]) -> int:
    """Weights arrive with relative rounding noise, as a coarse quantisation would leave them."""
    version = load(weights)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in replica.model.parameters():
            if parameter.ndim == 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(parameter * noise * magnitude)
    return version


def _ignore_stop(magnitude: float, request: Any) -> Any:
    import zlib

    if zlib.crc32(request.request_id.encode()) % 1000 < 1000 * magnitude:
        return replace(request, sampling=replace(request.sampling, ignore_stop=True))
    return request


SYSTEM_TOKEN = 3


def _other_template(magnitude: float, request: Any) -> Any:
    """The engine's template begins with ``magnitude`` special tokens that the trainer's does not have."""
    extra = np.full(int(magnitude), SYSTEM_TOKEN, np.int32)
    return replace(request, token_ids=np.concatenate([extra, request.token_ids]))


def _temperature(magnitude: float, logits: torch.Tensor) -> torch.Tensor:
    return logits / magnitude


def _top_k(magnitude: float, logits: torch.Tensor) -> torch.Tensor:
    k = int(magnitude)
    floor = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < floor, -math.inf)


def _anchor(magnitude: float, settings: dict[str, Any]) -> None:
    settings["environments"]["toy"]["anchor"] = {"weight": magnitude}


FAULTS: tuple[Fault, ...] = (
    Fault("hackable_reward", ("reward_hacked",), 1, (1, 2), (0.8, 0.9, 1.0), grade=_pay_length),
    Fault("constant_reward", ("reward_dead",), 1, (1, 2), (0.0, 0.5, 1.0), grade=_constant),
    Fault(
        "impossible_tasks",
        ("tasks_too_hard", "task_mix_changed", "reward_dead"),
        1,
        (1, 2),
        (0.9, 0.95, 0.99),
        grade=_impossible,
    ),
    Fault("silent_grader", ("grader_failing",), 1, (1,), (0.3, 0.6, 0.9), grade=_no_verdict),
    Fault("unknown_temperature", ("temperature_not_matched",), 3, (2, 3), (0.8, 0.65, 1.4), logits=_temperature),
    Fault("unknown_top_k", ("support_not_matched",), 3, (2, 3), (24.0, 8.0, 4.0), logits=_top_k),
    Fault("old_weights", ("stale_weights",), 4, (2, 3), (16.0, 32.0, 0.0), load=_keep_old),
    Fault("coarse_weights", ("numerics_differ",), 3, (2, 3), (0.05, 0.1, 0.2), load=_noisy),
    Fault("other_template", ("prompt_handled_differently",), 3, (2, 3), (1.0, 2.0, 4.0), request=_other_template),
    Fault("deaf_to_stop", ("stop_token_missed",), 4, (2, 4), (0.5, 0.8, 1.0), request=_ignore_stop),
    Fault(
        "hot_rate",
        ("learning_rate_too_high", "policy_collapsed"),
        2,
        (2,),
        (40.0, 80.0, 160.0),
        rate=lambda m, rate: rate * m,
    ),
    Fault(
        "cold_rate",
        ("learning_rate_too_low",),
        2,
        (2,),
        (1e-2, 1e-3, 1e-4),
        rate=lambda m, rate: rate * m,
        onsets=(0.0,),
    ),
    Fault("strong_anchor", ("anchor_too_strong",), 2, (1, 2), (3.0, 10.0, 30.0), settings=_anchor, onsets=(0.0,)),
)

"""Master weights and their optimizer: what every trained model has, policy and critic alike.

Forward and backward run on parameters of the compute dtype; the optimizer keeps masters of a wider one, and every
micro-batch's gradient is added to a sum in the masters' precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from posttrain.errors import NonFiniteError
from posttrain.policy.optimizer_state import load_state, save_state


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW and its schedule; ``total_updates`` is where linear and cosine schedules end."""

    learning_rate: float
    total_updates: int
    warmup_updates: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    gradient_clip: float = 1.0

    def rate_at(self, update: int) -> float:
        """Learning rate of update number ``update``, counted from 0."""
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        if self.schedule == "constant":
            return self.learning_rate
        span = max(1, self.total_updates - self.warmup_updates)
        left = max(0.0, 1.0 - (update - self.warmup_updates) / span)
        return self.learning_rate * (left if self.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))


@dataclass(frozen=True, slots=True)
class StepResult:
    """``grad_norm`` is the global L2 norm before clipping; ``learning_rate`` the one used; ``policy_version`` counts
    the steps applied to these weights."""

    grad_norm: float
    learning_rate: float
    policy_version: int


class Masters:
    """Masters of named parameters, and the AdamW that moves them. ``updates`` counts the steps applied."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings, dtype: torch.dtype = torch.float32
    ) -> None:
        """A parameter that is of ``dtype`` already is its own master."""
        self.settings, self.updates = settings, 0
        self._parameters = dict(parameters)
        self.tensors = {
            name: p if p.dtype == dtype else nn.Parameter(p.detach().to(dtype)) for name, p in self._parameters.items()
        }
        for name, parameter in self._parameters.items():
            if self.tensors[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(_fold_gradient(self.tensors[name]))
        self.adamw = torch.optim.AdamW(
            list(self.tensors.values()),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def zero_grad(self) -> None:
        """Drop the gradients summed so far."""
        self.adamw.zero_grad(set_to_none=True)

    def step(self, owner: str) -> StepResult:
        """Clip, apply, count. A step whose gradient is absent or exactly zero changes no weight and is not counted.

        Raises NonFiniteError, naming the parameter and ``owner``, and changes nothing if the gradient is not finite.
        """
        rate = self.settings.rate_at(self.updates)
        grads = [m.grad for m in self.tensors.values() if m.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads) if grads else torch.zeros(())
        if float(norm) == 0.0:
            # Rows without advantage may be left out or computed: the optimizer's momentum moves in neither case.
            self.zero_grad()
            return StepResult(0.0, rate, self.updates)
        if not bool(torch.isfinite(norm)):
            bad = next(n for n, m in self.tensors.items() if m.grad is not None and not m.grad.isfinite().all())
            raise NonFiniteError(f"the gradient of {bad} is not finite at {owner} version {self.updates}")
        torch.nn.utils.clip_grads_with_norm_(list(self.tensors.values()), self.settings.gradient_clip, norm)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.zero_grad()
        self._cast()
        self.updates += 1
        return StepResult(float(norm), rate, self.updates)

    @torch.no_grad()
    def _cast(self) -> None:
        for name, parameter in self._parameters.items():
            if self.tensors[name] is not parameter:
                parameter.copy_(self.tensors[name])

    def save(self, directory: Path) -> None:
        """Write masters, optimizer state and counters as safetensors and JSON into an existing folder."""
        save_state(directory, self.tensors, self.adamw, self.updates)

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote. Raises InputError if names or shapes do not fit."""
        self.updates = load_state(directory, self.tensors, self.adamw)
        self._cast()


def _fold_gradient(master: nn.Parameter) -> Any:
    """Add a parameter's gradient to its master's in the master's precision, and free it."""

    def fold(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.to(master.dtype)
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return fold

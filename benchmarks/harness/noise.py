"""How noisy a gradient estimate is, and how large its advantages are, from batches of one fixed policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from posttrain.orchestration.batch import Batch
from posttrain.orchestration.workbench import Workbench
from posttrain.policy.advantages import sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.gae import generalised_advantages
from posttrain.policy.update import plan_blocks
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Advantage, Aggregation

SCORE_FUNCTION = algorithm_row("reinforce").spec.override(aggregation=Aggregation(kind="token_mean"))

Estimator = Callable[[Batch, float], np.ndarray]
"""From a batch and the attempts of each group to the advantage of every token, float64 (T,)."""


def _of_rows(baseline: str) -> Estimator:
    def estimate(batch: Batch, attempts: float) -> np.ndarray:
        spec = Advantage.model_validate({"baseline": baseline})
        values = sequence_advantages(batch.rewards, [t.group_id for t in batch.rows], spec).values
        if baseline == "group_mean":
            # Its expected gradient is (n - 1)/n of the others': noise is compared at equal size.
            values = values * attempts / (attempts - 1)
        return np.repeat(values, np.diff(batch.table.start))

    return estimate


def _batch_mean(batch: Batch, attempts: float) -> np.ndarray:
    tokens = batch.table.trained_tokens
    mean = float((batch.rewards * tokens).sum() / tokens.sum())
    return np.repeat(batch.rewards - mean, np.diff(batch.table.start))


def _critic(gae_lambda: float) -> Estimator:
    def estimate(batch: Batch, attempts: float) -> np.ndarray:
        assert batch.critic is not None
        table, rewards = batch.table, np.zeros(len(batch.table.loss_mask))
        last = [np.flatnonzero(table.loss_mask[table.row(i)])[-1] + table.start[i] for i in range(len(table))]
        rewards[last] = batch.rewards
        values = batch.critic.columns.value.astype(np.float64)
        return generalised_advantages(rewards, values, table.loss_mask, table.start, gae_lambda=gae_lambda).advantages

    return estimate


BASELINES: Mapping[str, Estimator] = {
    "none": _of_rows("none"),
    "mean of the batch": _batch_mean,
    "group mean": _of_rows("group_mean"),
    "leave-one-out": _of_rows("leave_one_out"),
    "critic": _critic(1.0),
    "critic, lambda 0.95": _critic(0.95),
}


@dataclass
class Noise:
    """Sums over batches: squared advantages over tokens, gradients and their squared norms."""

    squares: float = 0.0
    tokens: int = 0
    batches: int = 0
    norms: float = 0.0
    gradient: np.ndarray | None = field(default=None, repr=False)

    def add(self, advantages: np.ndarray, mask: np.ndarray, gradient: np.ndarray | None) -> None:
        """One more batch."""
        self.squares += float((advantages[mask] ** 2).sum())
        self.tokens += int(mask.sum())
        self.batches += 1
        if gradient is not None:
            self.norms += float(gradient @ gradient)
            self.gradient = gradient if self.gradient is None else self.gradient + gradient

    @property
    def mean_square(self) -> float:
        """Second moment of the advantages over tokens."""
        return self.squares / self.tokens

    @property
    def variance(self) -> float | None:
        """Trace of the covariance of a batch's gradient, unbiased; ``None`` where none was computed."""
        if self.gradient is None:
            return None
        return (self.norms - float(self.gradient @ self.gradient) / self.batches) / (self.batches - 1)


def gradient_of(bench: Workbench, batch: Batch, advantages: np.ndarray) -> np.ndarray:
    """Gradient of the score-function loss under these advantages, float64, flat; nothing is trained."""
    table, trainer = batch.table, bench.trainer
    table.set_token_advantages(advantages)
    totals = step_totals(torch.from_numpy(table.trained_tokens), torch.from_numpy(table.group_of_row))
    trainer.begin(totals, SCORE_FUNCTION)
    for blocks in plan_blocks(trainer, batch.sequences, bench.plan):
        trainer.accumulate(blocks, table)
    parts = [m.grad.flatten() for m in trainer.masters.tensors.values() if m.grad is not None]
    gradient: Any = torch.cat(parts).double().cpu().numpy()
    trainer.masters.zero_grad()
    return gradient


def measured(
    bench: Workbench, batches: Sequence[Batch], attempts: int, with_gradients: bool
) -> dict[str, dict[str, float | None]]:
    """``mean_square`` and ``variance`` for each baseline on the same batches."""
    noise = {name: Noise() for name in BASELINES}
    for batch in batches:
        for name, estimate in BASELINES.items():
            advantages = estimate(batch, attempts)
            gradient = gradient_of(bench, batch, advantages) if with_gradients else None
            noise[name].add(advantages, batch.table.loss_mask, gradient)
    return {name: {"mean_square": n.mean_square, "variance": n.variance} for name, n in noise.items()}

"""Golden vectors as flat token batches, built the way a trainer builds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posttrain.policy.advantages import Advantages, Attempts, sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import StepTotals, TokenBatch
from posttrain.policy.objective import objective
from posttrain.settings.objective import Advantage, ObjectiveSpec

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Golden:
    """One golden file: ``data`` as stored, and its rows as flat tensors."""

    data: dict[str, Any]

    @property
    def expected(self) -> dict[str, Any]:
        return self.data["expected"]

    @property
    def mask(self) -> np.ndarray:
        return np.array(self.data["inputs"]["mask"]) == 1

    @property
    def valid(self) -> np.ndarray:
        """Rows with tokens; a fully masked row leaves its group's statistics in these files."""
        return self.mask.any(axis=1)

    def advantages(self, spec: Advantage) -> Advantages:
        inputs = self.data["inputs"]
        rewards = np.array(inputs["rewards"])
        greedy = inputs.get("greedy_rewards")
        if greedy is not None:
            greedy = np.array(greedy, np.float64)
            if greedy.shape != rewards.shape:
                greedy = greedy[np.unique(inputs["group_ids"], return_inverse=True)[1]]
        attempts = Attempts(self.mask.sum(1), greedy, rewards >= 1.0)
        return sequence_advantages(rewards, inputs["group_ids"], spec, self.valid, attempts)

    def matrix(self, name: str) -> torch.Tensor | None:
        values = self.data["inputs"].get(name)
        return None if values is None else torch.tensor(values, dtype=torch.float64)

    def batch(self, token_advantages: np.ndarray, garbage: float = float("nan")) -> tuple[TokenBatch, StepTotals]:
        """All rows as one flat batch; every value at a masked token is replaced by ``garbage``."""
        mask = torch.tensor(self.mask)
        rows, width = mask.shape
        sequence = torch.arange(rows).repeat_interleave(width)

        def flat(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else torch.where(mask, values, garbage).reshape(-1)

        logprobs = flat(self.matrix("logp_new"))
        old = flat(self.matrix("logp_old" if "logp_old" in self.data["inputs"] else "logp_rollout"))
        assert logprobs is not None
        assert old is not None
        advantages = torch.where(mask, torch.tensor(token_advantages), garbage).reshape(-1)
        batch = TokenBatch(
            logprobs.requires_grad_(),
            old,
            advantages,
            mask.reshape(-1),
            sequence,
            sampler_logprobs=flat(self.matrix("logp_rollout")),
            reference_logprobs=flat(self.matrix("logp_ref")),
        )
        groups = np.unique(self.data["inputs"].get("group_ids", [0] * rows), return_inverse=True)[1]
        return batch, step_totals(mask.sum(1), torch.tensor(groups))

    def run(self, spec: ObjectiveSpec, sequence_values: np.ndarray | None = None) -> tuple[float, np.ndarray, Any, int]:
        """Loss, gradient (rows, width), statistics and trained tokens under ``spec``."""
        values = self.advantages(spec.advantage).values if sequence_values is None else sequence_values
        batch, totals = self.batch(np.repeat(values[:, None], self.mask.shape[1], axis=1))
        result = objective(batch, totals, spec)
        result.loss.backward()
        assert batch.logprobs.grad is not None
        return (
            result.loss.item(),
            batch.logprobs.grad.numpy().reshape(self.mask.shape),
            result.statistics,
            totals.tokens,
        )


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """Load a golden file by name, ``ragged/`` ones included."""
    torch.set_num_threads(1)
    return lambda name: Golden(json.loads((GOLDEN / f"{name}.json").read_text()))

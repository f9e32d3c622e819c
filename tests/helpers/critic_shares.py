"""A critic's gradient on a share of one batch's rows, for a process that knows nothing of the others'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from policies import make_groups, make_model, make_trainer

from posttrain.policy.critic import Critic
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.update import UpdatePlan, plan_blocks
from posttrain.settings.objective import Critic as CriticSpec

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6]), (9, [4, 4, 12, 1])]
ROWS = sum(len(lengths) for _, lengths in SHAPES)
TOKENS = sum(sum(lengths) for _, lengths in SHAPES)
"""Trained tokens of the whole step: the one number that every process must be told."""


def share_of_gradient(rows: Sequence[int], micro_batch_tokens: int) -> tuple[dict[str, np.ndarray], float]:
    """Summed gradients by name, and this share's part of the loss."""
    torch.set_num_threads(1)
    everything = [t for g in make_groups(SHAPES, lambda g, m: 0.0) for t in g]
    chosen = [everything[i] for i in rows]
    model = make_model()
    critic = Critic(model, CriticSpec(), OptimizerSettings(1e-3, 100))
    with torch.no_grad():
        weight = critic.head.linear.weight
        weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    table, sequences = RowTable.of(chosen, np.ones(len(chosen), bool), [0.0] * len(chosen)), train_sequences(chosen)
    plan = plan_blocks(make_trainer(model), sequences, UpdatePlan(1, micro_batch_tokens, micro_batch_tokens**2, True))
    columns = critic.score(plan, table)
    ids = np.concatenate([s.token_ids for s in sequences]).astype(np.float64)
    columns.returns[:] = np.where(table.loss_mask, np.sin(ids), 0.0)
    for blocks in plan:
        critic.accumulate(blocks, table, columns, TOKENS)
    gradients = {n: m.grad.numpy() for n, m in critic.masters.tensors.items() if m.grad is not None}
    return gradients, float(critic.result().statistics.loss)

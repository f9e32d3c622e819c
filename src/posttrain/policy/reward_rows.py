"""Rewards of rows, for a trainer whose model has a reward head."""

from __future__ import annotations

from posttrain.errors import NonFiniteError
from posttrain.model.packing import Block
from posttrain.model.reward_head import block_rewards
from posttrain.policy.fixed_update import RowValues
from posttrain.policy.trainer import Trainer


def last_rewards(trainer: Trainer, blocks: list[Block]) -> RowValues:
    """The reward of each sequence. Raises NonFiniteError naming the first that has none."""
    rows, rewards = block_rewards(trainer.model, blocks)
    finite = rewards.detach().isfinite()
    if not bool(finite.all()):
        bad = rows[int((~finite).nonzero()[0])]
        raise NonFiniteError(f"the reward of row {bad} is not finite")
    tokens = sum(int(sequence.target_mask.sum()) for block in blocks for sequence in block.sequences)
    return RowValues(rows, rewards, float("nan"), tokens)

"""The critic's part of a step: values, advantages of tokens, and what it says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from posttrain.model.packing import TrainSequence
from posttrain.policy.advantages import Advantages, whiten
from posttrain.policy.critic import Critic, CriticUpdate, SharedHead, ValueColumns
from posttrain.policy.gae import explained_variance, generalised_advantages
from posttrain.policy.groups import Groups
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, plan_blocks
from posttrain.settings.objective import ObjectiveSpec
from posttrain.trajectory import FinishReason, Trajectory

CUT = (FinishReason.LENGTH, FinishReason.CONTEXT, FinishReason.BUDGET)
"""How an answer ends that the policy did not end."""


@dataclass(frozen=True, slots=True)
class CriticBatch:
    """A batch as the critic sees it. ``advantages`` float64 (T,) multiply the tokens; ``of_rows`` are each row's mean
    over its trained tokens, for statistics."""

    columns: ValueColumns
    advantages: npt.NDArray[np.float64]
    of_rows: Advantages


def critic_optimizer(
    policy: OptimizerSettings, spec: ObjectiveSpec, steps: int, updates_per_batch: int
) -> OptimizerSettings:
    """The policy's optimizer at the critic's learning rate, gradient clip and number of steps."""
    critic = spec.critic
    separate = critic.backbone == "separate"
    return replace(
        policy,
        learning_rate=critic.learning_rate,
        total_updates=steps * (critic.epochs if separate else updates_per_batch),
        gradient_clip=critic.gradient_clip,
    )


def value_batch(
    critic: Critic,
    trainer: Trainer,
    plan: UpdatePlan,
    spec: ObjectiveSpec,
    table: RowTable,
    sequences: Sequence[TrainSequence],
    rows: Sequence[Trajectory],
    rewards: npt.NDArray[np.float64],
    penalties: npt.NDArray[np.float64],
) -> CriticBatch:
    """Score the batch and estimate every trained token's advantage and return.

    ``rewards`` float64 (S,) are paid at each row's last trained token; ``penalties`` float64 (T,) are subtracted where
    they arise. With ``critic.truncated = "bootstrap"`` a row that was cut off goes on with the value of where it
    stopped; otherwise nothing follows.
    """
    columns = critic.score(plan_blocks(trainer, sequences, plan), table)
    mask = table.loss_mask
    token_rewards = np.where(mask, -penalties, 0.0)
    token_rewards[_last_trained(table)] += rewards[table.trained_tokens > 0]
    goes_on = np.array([spec.critic.truncated == "bootstrap" and t.finish_reason in CUT for t in rows], np.bool_)
    estimates = generalised_advantages(
        token_rewards,
        columns.value.astype(np.float64),
        mask,
        table.start,
        gamma=spec.critic.gamma,
        gae_lambda=spec.critic.gae_lambda,
        next_values=np.where(goes_on, columns.next_value, 0.0),
    )
    columns.returns[:] = estimates.returns
    advantages = estimates.advantages.copy()
    if spec.advantage.scale == "token_whiten":
        ones = np.ones(int(mask.sum()))
        advantages[mask] = whiten(advantages[mask], ones, spec.advantage.std_ddof, spec.advantage.std_epsilon)
    of_rows = Advantages(
        _mean_of_rows(advantages, table),
        _mean_of_rows(estimates.advantages, table),
        Groups.of([t.group_id for t in rows], table.trained_tokens > 0),
    )
    return CriticBatch(columns, advantages, of_rows)


def shared_head(critic: Critic | None, batch: CriticBatch | None, *, frozen: bool) -> SharedHead | None:
    """What takes part in the policy's passes, if the critic is a head on its backbone. Begins the critic's step."""
    if critic is None or batch is None or not critic.shared:
        return None
    critic.begin()
    return SharedHead(critic, batch.columns, head_only=frozen)


def critic_signals(batch: CriticBatch, update: CriticUpdate, table: RowTable) -> dict[str, float]:
    """By signal name. Advantages are counted token by token: those of the rows are only their means."""
    mask, columns = table.loss_mask, batch.columns
    passes, tokens = len(update.steps), int(mask.sum())
    values = {"policy/critic_learning_rate": update.steps[-1].learning_rate}
    if not tokens:
        return values
    size = np.abs(batch.advantages[mask])
    explained = explained_variance(columns.value, columns.returns, mask)
    if explained is not None:
        values["policy/critic_explained_variance"] = explained
    return values | {
        "policy/critic_loss": float(update.statistics.loss) / passes,
        "policy/critic_clip_fraction": float(update.statistics.clipped) / (tokens * passes),
        "policy/critic_grad_norm": update.steps[-1].grad_norm,
        "policy/value_mean": float(columns.value[mask].mean(dtype=np.float64)),
        "policy/return_mean": float(columns.returns[mask].mean(dtype=np.float64)),
        "policy/advantage_abs_mean": float(size.mean()),
        "policy/advantage_abs_max": float(size.max()),
    }


def _last_trained(table: RowTable) -> npt.NDArray[np.int64]:
    """Place of the last trained token of each row that has one, in order of rows."""
    chosen = np.flatnonzero(table.loss_mask)
    row = table.row_of_token[chosen]
    return chosen[np.append(row[1:] != row[:-1], True)] if chosen.size else chosen


def _mean_of_rows(values: npt.NDArray[np.float64], table: RowTable) -> npt.NDArray[np.float64]:
    sums = np.bincount(table.row_of_token, np.where(table.loss_mask, values, 0.0), len(table))
    return sums / np.maximum(table.trained_tokens, 1)

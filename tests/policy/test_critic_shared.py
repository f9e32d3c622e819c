"""A head on the policy's backbone: its gradients are those of a critic of its own, in the policy's own passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from policies import largest_gap, make_groups, make_model, make_trainer

from posttrain.policy.critic import Critic, SharedHead, ValueColumns
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, UpdateResult, plan_blocks, update_policy
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Critic as CriticSpec

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6])]
SPEC = algorithm_row("ppo").spec
WIDE = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_critic(model: Any, **spec: Any) -> Critic:
    critic = Critic(model, CriticSpec(**spec), OptimizerSettings(1e-3, 100, gradient_clip=1e9))
    with torch.no_grad():
        weight = critic.head.linear.weight
        weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    return critic


class Kept:
    """Gradients at the moment of each step, before it is made."""

    def __init__(self, masters: Any) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        step = masters.step

        def kept(owner: str) -> Any:
            self.gradients.append(
                {n: torch.zeros_like(m) if m.grad is None else m.grad.clone() for n, m in masters.tensors.items()}
            )
            return step(owner)

        masters.step = kept


def columns_of(critic: Critic, trainer: Trainer, table: RowTable, sequences: Any) -> ValueColumns:
    columns = critic.score(plan_blocks(trainer, sequences, WIDE), table)
    ids = np.concatenate([s.token_ids for s in sequences]).astype(np.float64)
    columns.returns[:] = np.where(table.loss_mask, np.sin(ids), 0.0)
    return columns


def rows(advantage: float = 0.0) -> tuple[RowTable, list[Any]]:
    found = [t for g in make_groups(SHAPES, lambda g, m: 0.0) for t in g]
    table = RowTable.of(found, np.ones(len(found), bool), [0.0] * len(found))
    table.set_token_advantages(np.where(np.arange(len(table.loss_mask)) % 3 == 0, advantage, 0.0))
    return table, train_sequences(found)


def shared_update(
    coefficient: float, advantage: float = 0.0, plan: UpdatePlan = WIDE, head_only: bool = False, **flags: Any
) -> tuple[Kept, Kept, UpdateResult, Trainer, Critic]:
    model = make_model()
    critic = make_critic(model, backbone="shared", coefficient=coefficient)
    trainer = make_trainer(model)
    table, sequences = rows(advantage)
    head = SharedHead(critic, columns_of(critic, trainer, table, sequences), head_only)
    critic.begin()
    policy, of_head = Kept(trainer.masters), Kept(critic.masters)
    result = update_policy(trainer, table, sequences, SPEC, plan, values=head, **flags)
    return policy, of_head, result, trainer, critic


def test_backbone_and_head_get_the_gradients_of_a_critic_of_its_own() -> None:
    model = make_model()
    separate, trainer = make_critic(model), make_trainer(model)
    table, sequences = rows()
    columns = columns_of(separate, trainer, table, sequences)
    kept = Kept(separate.masters)
    separate.train(plan_blocks(trainer, sequences, WIDE), table, columns)
    policy, head, *_ = shared_update(0.5)
    own = {n.removeprefix("backbone."): g for n, g in kept.gradients[0].items() if n.startswith("backbone.")}
    # The head's gradient is whole; the backbone's is weighted.
    for name in ("head.linear.weight", "head.linear.bias"):
        torch.testing.assert_close(head.gradients[0][name], kept.gradients[0][name], rtol=1e-4, atol=1e-6)
    embedding = "model.embed_tokens.weight"
    assert embedding in own
    assert largest_gap({n: 0.5 * g for n, g in own.items()}, {n: policy.gradients[0][n] for n in own}) < 2e-5


def test_value_and_policy_gradients_add_up_and_no_cut_changes_them() -> None:
    alone, *_ = shared_update(0.0, advantage=1.0)
    values, *_ = shared_update(0.5, advantage=0.0)
    base, base_head, *_ = shared_update(0.5, advantage=1.0)
    summed = {n: g + values.gradients[0][n] for n, g in alone.gradients[0].items()}
    assert largest_gap(summed, base.gradients[0]) < 2e-5
    assert largest_gap(alone.gradients[0], base.gradients[0]) > 1e-2, "the values must be seen"
    for plan in (UpdatePlan(1, 1, 1, True), UpdatePlan(1, 25, 625, False, share_prompts=False)):
        other, head, *_ = shared_update(0.5, advantage=1.0, plan=plan)
        assert largest_gap(base.gradients[0], other.gradients[0]) < 2e-5
        assert largest_gap(base_head.gradients[0], head.gradients[0]) < 2e-5


@pytest.mark.parametrize(("coefficient", "head_only"), [(0.0, False), (0.5, True)])
def test_values_that_only_watch_leave_the_backbone_alone(coefficient: float, head_only: bool) -> None:
    policy, head, result, trainer, critic = shared_update(coefficient, head_only=head_only)
    assert not any(g.any() for g in policy.gradients[0].values())
    assert any(g.any() for g in head.gradients[0].values())
    assert trainer.version == 0
    assert critic.masters.updates == 1
    assert result.steps[0].grad_norm == 0


def test_a_frozen_policy_is_scored_and_stays_and_the_head_learns() -> None:
    policy, _, result, trainer, critic = shared_update(0.5, advantage=1.0, head_only=True, frozen=True)
    assert result.frozen
    assert trainer.version == 0
    assert not any(g.any() for g in policy.gradients[0].values())
    assert critic.result().steps[0].grad_norm > 0
    assert result.trained_tokens == sum(sum(lengths) for _, lengths in SHAPES)
    assert float(result.statistics.finalize(result.trained_tokens)["policy/ratio_mean"]) == pytest.approx(1.0)


def test_several_policy_updates_train_the_head_on_each_part_once() -> None:
    _, head, result, trainer, critic = shared_update(0.5, advantage=1.0, plan=UpdatePlan(2, 10_000, 10_000_000, True))
    assert trainer.version == critic.masters.updates == len(result.steps) == len(head.gradients) == 2
    assert float(critic.result().statistics.loss) > 0

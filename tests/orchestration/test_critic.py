"""Answers of several turns: a tool's tokens are read, and neither valued, rewarded nor waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from independent import critic as oracle
from policies import VOCABULARY, make_model, make_trainer

from posttrain.model.forward import base_model
from posttrain.orchestration.critic import value_batch
from posttrain.policy.critic import Critic
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.update import UpdatePlan
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Advantage
from posttrain.settings.objective import Critic as CriticSpec
from posttrain.trajectory import FinishReason, Message, Origin, SamplingParams, Segment, Task, Trajectory

TASK = Task("t", (Message("user", "?"),), None, "toy")
Turns = list[tuple[int, int]]
"""For each turn the number of sampled tokens and of the tool's tokens after them."""


def conversations(shapes: list[Turns], finish: FinishReason = FinishReason.STOP, seed: int = 0) -> list[Trajectory]:
    random = np.random.default_rng(seed)
    rows: list[Trajectory] = []
    for number, turns in enumerate(shapes):
        row = Trajectory(f"g{number // 2}/{number}", f"g{number // 2}", TASK, SamplingParams(64))
        prompt = np.random.default_rng(number // 2).integers(0, VOCABULARY, 4).astype(np.int32)
        row.append(Segment(Origin.PROMPT, prompt))
        for sampled, answered in turns:
            ids = random.integers(0, VOCABULARY, sampled).astype(np.int32)
            row.append(Segment(Origin.MODEL, ids, np.full(sampled, -4.0, np.float32), 0))
            if answered:
                row.append(Segment(Origin.ENVIRONMENT, random.integers(0, VOCABULARY, answered).astype(np.int32)))
        row.finish_reason = finish
        rows.append(row)
    return rows


def scored(rows: list[Trajectory], plan: UpdatePlan | None = None, **spec: Any) -> tuple[Any, RowTable, Critic]:
    """Rewards 1, 2, 3..., penalties that grow with the place of the token, no whitening."""
    torch.set_num_threads(1)
    model = make_model()
    critic = Critic(model, CriticSpec(**spec), OptimizerSettings(1e-3, 100))
    with torch.no_grad():
        weight = critic.head.linear.weight
        weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    table, sequences = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows)), train_sequences(rows)
    objective = algorithm_row("ppo").spec.override(critic=CriticSpec(**spec), advantage=Advantage(scale="none"))
    batch = value_batch(
        critic,
        make_trainer(model),
        plan or UpdatePlan(1, 10_000, 10_000_000, True),
        objective,
        table,
        sequences,
        rows,
        np.arange(1.0, len(rows) + 1),
        np.where(table.loss_mask, 0.01 * np.arange(len(table.loss_mask)), np.nan),
    )
    return batch, table, critic


SHAPES = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3), min_size=1, max_size=4
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(SHAPES, st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]), st.sampled_from(["end", "bootstrap"]))
def test_estimates_are_those_of_the_sampled_tokens_alone(shapes: Any, finish: FinishReason, truncated: str) -> None:
    rows = conversations(shapes, finish)
    batch, table, _ = scored(rows, gamma=0.9, gae_lambda=0.8, truncated=truncated)
    goes_on = finish is FinishReason.LENGTH and truncated == "bootstrap"
    for index, row in enumerate(rows):
        part, mask = table.row(index), row.model_mask
        rewards = np.where(mask, -0.01 * np.arange(part.start, part.stop), 0.0)
        rewards[np.flatnonzero(mask)[-1]] += index + 1
        values = batch.columns.value[part].astype(np.float64)
        assert np.isnan(values[~mask]).all()
        after = batch.columns.next_value[index : index + 1] if goes_on else None
        want, returns = oracle.gae(rewards[None], values[None], mask[None], 0.9, 0.8, after)
        np.testing.assert_allclose(batch.advantages[part], want[0], atol=1e-9)
        np.testing.assert_allclose(batch.columns.returns[part], returns[0], atol=1e-5)
        assert batch.of_rows.values[index] == pytest.approx(want[0][mask].mean(), abs=1e-9)


def test_the_first_token_of_a_turn_is_valued_after_the_tool_has_answered() -> None:
    rows = conversations([[(3, 2), (2, 3)], [(1, 4), (4, 0)]])
    batch, table, critic = scored(rows)
    base: Any = base_model(critic.backbone)
    base.get_decoder().config._attn_implementation = "eager"
    for index, row in enumerate(rows):
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            states = critic.head(base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]).numpy()
        values = batch.columns.value[table.row(index)]
        for place in np.flatnonzero(row.model_mask):
            assert values[place] == pytest.approx(states[place - 1], abs=2e-5)
        # What follows the last token is the state at its very end, the tool's answer read.
        assert batch.columns.next_value[index] == pytest.approx(states[-1], abs=2e-5)


def test_no_cut_into_micro_batches_changes_an_advantage() -> None:
    shapes: list[Turns] = [[(3, 2), (2, 3)], [(1, 4), (4, 0)], [(5, 0)], [(2, 1), (2, 1), (1, 0)]]
    rows = conversations(shapes)
    base, _, _ = scored(rows, gae_lambda=0.9)
    for plan in (UpdatePlan(1, 1, 1, True), UpdatePlan(1, 30, 900, True, share_prompts=False)):
        other, _, _ = scored(rows, plan, gae_lambda=0.9)
        np.testing.assert_allclose(other.advantages, base.advantages, atol=5e-5)

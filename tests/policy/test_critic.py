"""The critic: values in their places, gradients that no packing changes, learning, sharing, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policies import largest_gap, make_groups, make_model, make_trainer

from posttrain.errors import InputError, NonFiniteError
from posttrain.model.forward import base_model
from posttrain.model.lora import attach_lora
from posttrain.policy.critic import Critic, ValueColumns
from posttrain.policy.gae import explained_variance, generalised_advantages
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, plan_blocks
from posttrain.settings.objective import Critic as CriticSpec

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6]), (9, [4, 4, 12, 1])]
WIDE = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)
PLANS = (
    UpdatePlan(1, 1, 1, True),
    UpdatePlan(1, 40, 1600, True),
    UpdatePlan(1, 10_000, 10_000_000, True, share_prompts=False),
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_critic(model: Any, rate: float = 1e-3, seed: int = 0, **spec: Any) -> Critic:
    """A critic whose head is not 0, so that gradients reach the backbone."""
    critic = Critic(model, CriticSpec(**spec), OptimizerSettings(rate, 100))
    with torch.no_grad():
        weight = critic.head.linear.weight
        weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
        critic.head.linear.bias.fill_(0.3)
    return critic


def batch(order: Any = None, out_of_loss: tuple[int, ...] = ()) -> tuple[RowTable, list[Any]]:
    rows = [t for g in make_groups(SHAPES, lambda g, m: 0.0) for t in g]
    order = range(len(rows)) if order is None else order
    rows = [rows[i] for i in order]
    in_loss = np.array([i not in out_of_loss for i in order])
    return RowTable.of(rows, in_loss, [0.0] * len(rows)), train_sequences(rows)


def with_returns(columns: ValueColumns, table: RowTable, tokens: np.ndarray) -> ValueColumns:
    """Returns that depend on the token alone, so that they are the same in any order of rows."""
    columns.returns[:] = np.where(table.loss_mask, np.sin(tokens), 0.0)
    return columns


def token_ids(sequences: list[Any]) -> np.ndarray:
    return np.concatenate([s.token_ids for s in sequences]).astype(np.float64)


def plan_of(trainer: Trainer, sequences: list[Any], plan: UpdatePlan = WIDE) -> Any:
    return plan_blocks(trainer, sequences, plan)


def gradients(critic: Critic) -> dict[str, torch.Tensor]:
    return {n: torch.zeros_like(m) if m.grad is None else m.grad.clone() for n, m in critic.masters.tensors.items()}


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_values_are_the_heads_at_the_state_before_each_token(kind: str) -> None:
    """Row by row, unpacked, by the model's own forward: position t - 1 speaks of token t."""
    model = make_model(kind)
    trainer, critic = make_trainer(model), make_critic(model)
    table, sequences = batch()
    columns = critic.score(plan_of(trainer, sequences), table)
    base: Any = base_model(model)
    base.set_attn_implementation("eager")
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
            hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
            values = critic.head(hidden).numpy()
            part = table.row(sequence.index)
            mask = sequence.target_mask
            np.testing.assert_allclose(columns.value[part][mask], values[:-1][mask[1:]], atol=2e-5)
            assert np.isnan(columns.value[part][~mask]).all()
            assert columns.next_value[sequence.index] == pytest.approx(values[-1], abs=2e-5)


def test_a_fresh_critic_says_nothing() -> None:
    model = make_model()
    critic = Critic(model, CriticSpec(), OptimizerSettings(1e-3, 100))
    table, sequences = batch()
    columns = critic.score(plan_of(make_trainer(model), sequences), table)
    assert not columns.value[table.loss_mask].any()
    assert not columns.next_value.any()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_micro_batches_sharing_and_order_change_no_value_and_no_gradient(kind: str) -> None:
    model = make_model(kind)
    trainer = make_trainer(model)
    table, sequences = batch(out_of_loss=(3,))
    base = make_critic(model)
    columns = with_returns(base.score(plan_of(trainer, sequences), table), table, token_ids(sequences))
    tokens = int(table.loss_mask.sum())
    for blocks in plan_of(trainer, sequences):
        base.accumulate(blocks, table, columns, tokens)
    reference, loss = gradients(base), float(base.result().statistics.loss)
    assert loss > 0
    random = np.random.default_rng(0)
    for plan in PLANS:
        order = random.permutation(len(table))
        other_table, other_sequences = batch(order, out_of_loss=(3,))
        other = make_critic(model)
        cut = plan_of(trainer, other_sequences, plan)
        other_columns = with_returns(other.score(cut, other_table), other_table, token_ids(other_sequences))
        for blocks in cut:
            other.accumulate(blocks, other_table, other_columns, tokens)
        assert largest_gap(reference, gradients(other)) < 2e-5
        assert float(other.result().statistics.loss) == pytest.approx(loss, rel=1e-5)
        for row, source in enumerate(order):
            np.testing.assert_allclose(
                other_columns.value[other_table.row(row)], columns.value[table.row(source)], atol=2e-5
            )


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(12)), st.integers(1, 120), st.booleans())
def test_any_order_and_any_limit(order: list[int], limit: int, share: bool) -> None:
    model = make_model()
    trainer = make_trainer(model)
    found = []
    for arrangement, plan in ((None, WIDE), (order, UpdatePlan(1, limit, limit**2, True, share))):
        table, sequences = batch(arrangement)
        critic = make_critic(model)
        cut = plan_of(trainer, sequences, plan)
        columns = with_returns(critic.score(cut, table), table, token_ids(sequences))
        for blocks in cut:
            critic.accumulate(blocks, table, columns, int(table.loss_mask.sum()))
        found.append(gradients(critic))
    assert largest_gap(found[0], found[1]) < 2e-5


def test_the_gradient_is_that_of_the_formula_row_by_row() -> None:
    """Autograd of 0.5/N sum max(...) over unpacked rows, with values moved away from the old ones."""
    model = make_model()
    trainer, critic = make_trainer(model), make_critic(model)
    table, sequences = batch()
    plan = plan_of(trainer, sequences)
    columns = with_returns(critic.score(plan, table), table, token_ids(sequences))
    columns.value += np.random.default_rng(1).normal(0, 0.4, columns.value.shape).astype(np.float32)
    tokens = int(table.loss_mask.sum())
    for blocks in plan:
        critic.accumulate(blocks, table, columns, tokens)
    got = gradients(critic)
    assert int(critic.result().statistics.clipped) > 0
    critic.begin()
    base: Any = base_model(critic.backbone)
    base.get_decoder().config._attn_implementation = "eager"
    total: Any = 0.0
    for sequence in sequences:
        ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
        hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        mask, part = torch.from_numpy(sequence.target_mask[1:]), table.row(sequence.index)
        value = critic.head(hidden)[:-1][mask]
        old = torch.from_numpy(columns.value[part])[1:][mask]
        want = torch.from_numpy(columns.returns[part])[1:][mask]
        near = torch.max(torch.min(value, old + 0.2), old - 0.2)
        total = total + torch.max((value - want) ** 2, (near - want) ** 2).sum()
    (0.5 * total / tokens).backward()
    assert largest_gap(got, gradients(critic)) < 2e-5


def test_it_learns_what_can_be_predicted_and_not_noise() -> None:
    """Returns that follow from the state are explained; the same returns shuffled over the tokens are not."""
    explained = {}
    for shuffled in (False, True):
        model = make_model(spread=1.0)
        trainer = make_trainer(model)
        critic = Critic(model, CriticSpec(value_clip=None), OptimizerSettings(3e-3, 100))
        for step in range(40):
            rows = [t for g in make_groups(SHAPES, lambda g, m: 0.0, seed=step) for t in g]
            table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
            sequences = train_sequences(rows)
            plan = plan_of(trainer, sequences)
            columns = critic.score(plan, table)
            before = np.roll(token_ids(sequences), 1)  # the last token the state has seen
            returns = np.where(table.loss_mask, (before < 51).astype(float), 0.0)
            if shuffled:
                returns[table.loss_mask] = np.random.default_rng(step).permutation(returns[table.loss_mask])
            columns.returns[:] = returns
            explained[shuffled] = explained_variance(columns.value, returns, table.loss_mask)
            critic.train(plan, table, columns)
    assert explained[False] > 0.5
    assert explained[True] < 0.2


def test_passes_move_values_and_the_clip_counts_from_where_they_began() -> None:
    model = make_model()
    trainer = make_trainer(model)
    shares = {}
    for epochs in (1, 6):
        critic = make_critic(model, rate=3e-2, epochs=epochs, value_clip=0.05)
        table, sequences = batch()
        plan = plan_of(trainer, sequences)
        columns = critic.score(plan, table)
        columns.returns[:] = np.where(table.loss_mask, 2.0, 0.0)
        result = critic.train(plan, table, columns)
        assert [s.policy_version for s in result.steps] == list(range(1, epochs + 1))
        assert all(s.grad_norm > 0 for s in result.steps[:1])
        assert result.packed_tokens == epochs * sum(len(b) for blocks in plan for b in blocks)
        shares[epochs] = float(result.statistics.clipped)
    assert shares[1] == 0, "before the first update a value is where it was"
    assert shares[6] > 0


def test_resuming_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    model = make_model()
    trainer = make_trainer(model)
    table, sequences = batch()
    plan = plan_of(trainer, sequences)

    def go(critic: Critic, steps: int) -> None:
        for _ in range(steps):
            columns = with_returns(critic.score(plan, table), table, token_ids(sequences))
            critic.train(plan, table, columns)

    whole, first, second = make_critic(model), make_critic(model), make_critic(model, seed=9)
    go(whole, 4)
    go(first, 2)
    first.save(tmp_path)
    second.load(tmp_path)
    go(second, 2)
    assert second.masters.updates == 4
    for name, master in whole.masters.tensors.items():
        assert torch.equal(master, second.masters.tensors[name]), name
    shared = make_critic(make_model(), backbone="shared")
    with pytest.raises(InputError, match="are not those of this model"):
        shared.load(tmp_path)


def test_a_bfloat16_backbone_has_a_float32_head_and_float32_masters() -> None:
    model = make_model(dtype=torch.bfloat16)
    critic = make_critic(model)
    assert {p.dtype for p in critic.head.parameters()} == {torch.float32}
    assert {m.dtype for m in critic.masters.tensors.values()} == {torch.float32}
    table, sequences = batch()
    plan = plan_of(make_trainer(model), sequences)
    columns = with_returns(critic.score(plan, table), table, token_ids(sequences))
    assert critic.train(plan, table, columns).steps[0].grad_norm > 0


def test_the_copy_pays_for_no_language_model_head_and_leaves_the_policy_alone() -> None:
    model = make_model("qwen3")  # an untied head
    critic = make_critic(model)
    assert sum(p.numel() for p in critic.backbone.parameters()) == sum(
        p.numel() for n, p in model.named_parameters() if not n.startswith("lm_head")
    )
    before = {n: p.clone() for n, p in model.named_parameters()}
    table, sequences = batch()
    plan = plan_of(make_trainer(model), sequences)
    columns = with_returns(critic.score(plan, table), table, token_ids(sequences))
    critic.train(plan, table, columns)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


def test_with_adapters_the_critic_has_adapters_of_its_own() -> None:
    model = make_model()
    attach_lora(model, rank=4, alpha=8.0)
    critic = make_critic(model)
    names = list(critic.masters.tensors)
    assert all(".lora_" in n or n.startswith("head.") for n in names)
    assert sum(".lora_" in n for n in names) > 4
    before = {n: p.clone() for n, p in model.named_parameters()}
    table, sequences = batch()
    plan = plan_of(make_trainer(make_model()), sequences)
    columns = with_returns(critic.score(plan, table), table, token_ids(sequences))
    assert critic.train(plan, table, columns).steps[0].grad_norm > 0
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_value_that_is_not_finite_is_named() -> None:
    model = make_model()
    critic = make_critic(model)
    with torch.no_grad():
        critic.head.linear.bias.fill_(float("nan"))
    table, sequences = batch()
    with pytest.raises(NonFiniteError, match="the critic's value at position 9 of row"):
        critic.score(plan_of(make_trainer(model), sequences), table)


def test_values_and_returns_become_advantages_of_tokens() -> None:
    """Score, estimate, train: with lambda 1 and a reward at the end each return is the reward."""
    model = make_model()
    critic = make_critic(model)
    table, sequences = batch()
    columns = critic.score(plan_of(make_trainer(model), sequences), table)
    rewards = np.zeros(len(table.loss_mask))
    rewards[table.start[1:] - 1] = np.arange(len(table))
    got = generalised_advantages(rewards, columns.value.astype(np.float64), table.loss_mask, table.start)
    np.testing.assert_allclose(got.returns[table.loss_mask], table.row_of_token[table.loss_mask], atol=1e-5)

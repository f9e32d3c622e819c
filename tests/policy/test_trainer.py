"""The trainer: fp32 masters, exact save and load, nothing applied when a number is not finite, one policy exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import largest_gap, make_groups, make_model, make_trainer

from posttrain.errors import InputError, NonFiniteError
from posttrain.model.lora import merged_state
from posttrain.policy.aggregation import step_totals
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, plan_blocks, update_policy
from posttrain.rollout.native.engine import NativeEngine, NativeSettings
from posttrain.rollout.protocol import Request
from posttrain.settings.algorithms import algorithm_row
from posttrain.trajectory import SamplingParams

SHAPES = [(6, [5, 9, 3, 4]), (4, [7, 2, 8, 6])]
PLAN = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def one_update(trainer: Trainer, seed: int = 0, plan: UpdatePlan = PLAN) -> Any:
    rows = [t for g in make_groups(SHAPES, lambda g, m: float(m % 2), seed=seed) for t in g]
    table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
    table.set_advantages(np.array([t.reward - 0.5 for t in rows]))
    return update_policy(trainer, table, train_sequences(rows), algorithm_row("grpo").spec, plan)


def masters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: m.detach().clone() for name, m in trainer.masters.tensors.items()}


def test_masters_are_float32_and_the_model_is_their_cast() -> None:
    trainer = make_trainer(make_model(dtype=torch.bfloat16), rate=1e-4)
    before = masters(trainer)
    one_update(trainer)
    moved = 0
    for name, parameter in trainer.model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert trainer.masters.tensors[name].dtype == torch.float32
        torch.testing.assert_close(parameter, trainer.masters.tensors[name].bfloat16(), rtol=0, atol=0)
        moved += int((trainer.masters.tensors[name] != before[name]).sum())
    assert moved > 10_000


def test_small_updates_add_up_in_the_masters_where_bfloat16_would_round_them_away() -> None:
    trainer = make_trainer(make_model(dtype=torch.bfloat16), rate=1e-6)
    before = masters(trainer)
    for seed in range(3):
        one_update(trainer, seed)
    name = "model.layers.0.mlp.down_proj.weight"
    large = before[name].abs() > 0.01
    assert (trainer.masters.tensors[name] != before[name])[large].float().mean() > 0.5
    assert (trainer.masters.tensors[name].bfloat16() == before[name].bfloat16())[large].float().mean() > 0.9


def test_bfloat16_compute_stays_near_float32() -> None:
    exact = make_trainer(make_model(dtype=torch.bfloat16).float(), rate=1e-3)
    rounded = make_trainer(make_model(dtype=torch.bfloat16), rate=1e-3)
    assert largest_gap(masters(exact), masters(rounded)) == 0
    first, second = one_update(exact), one_update(rounded)
    assert second.steps[0].grad_norm == pytest.approx(first.steps[0].grad_norm, rel=0.03)
    before = masters(make_trainer(make_model(dtype=torch.bfloat16)))
    left = torch.cat([(m - before[n]).flatten() for n, m in masters(exact).items()])
    right = torch.cat([(m - before[n]).flatten() for n, m in masters(rounded).items()])
    assert float(torch.cosine_similarity(left, right, dim=0)) > 0.9


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    """In bfloat16 a sum of equal numbers stops growing at 256 of them, and is off by percents long before."""
    trainer = make_trainer(make_model(dtype=torch.bfloat16))
    rows = [t for g in make_groups([(3, [4, 4])], lambda g, m: float(m)) for t in g]
    table = RowTable.of(rows, np.ones(2, bool), [0.0, 0.0])
    table.set_advantages(np.array([0.5, -0.5]))
    [blocks] = plan_blocks(trainer, train_sequences(rows), PLAN)
    totals = step_totals(torch.from_numpy(table.trained_tokens), torch.from_numpy(table.group_of_row))
    sums: list[dict[str, torch.Tensor]] = []
    for times in (1, 150):
        trainer.begin(totals, algorithm_row("grpo").spec)
        for _ in range(times):
            trainer.accumulate(blocks, table)
        sums.append({n: m.grad / times for n, m in trainer.masters.tensors.items() if m.grad is not None})
    assert {g.dtype for g in sums[1].values()} == {torch.float32}
    assert largest_gap(*sums) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [False, True])
def test_saved_and_loaded_goes_on_bit_for_bit(dtype: torch.dtype, lora: bool, tmp_path: Path) -> None:
    whole = make_trainer(make_model(dtype=dtype), warmup_updates=3, schedule="cosine", lora=lora)
    one_update(whole, 0)
    one_update(whole, 1)
    whole.save(tmp_path)
    other = make_trainer(make_model(dtype=dtype), warmup_updates=3, schedule="cosine", lora=lora)
    other.load(tmp_path)
    assert other.version == 2
    left, right = whole.export(), other.export()
    assert left.manifest == right.manifest
    for trainer in (whole, other):
        one_update(trainer, 2)
    assert whole.version == other.version == 3
    for name, master in masters(whole).items():
        assert torch.equal(master, other.masters.tensors[name]), name


def test_a_fresh_trainer_saves_and_loads_too(tmp_path: Path) -> None:
    fresh = make_trainer()
    fresh.save(tmp_path)
    other = make_trainer(make_model(seed=5))
    other.load(tmp_path)
    for trainer in (fresh, other):
        one_update(trainer)
    assert largest_gap(masters(fresh), masters(other)) == 0


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_the_state_of_another_model_is_refused(kind: str, tmp_path: Path) -> None:
    make_trainer(make_model(kind)).save(tmp_path)
    trainer = make_trainer()
    before = masters(trainer)
    with pytest.raises(InputError, match="not those of this model") as caught:
        trainer.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert largest_gap(before, masters(trainer)) == 0


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing() -> None:
    trainer = make_trainer()
    one_update(trainer)
    before, state = masters(trainer), trainer.export().manifest
    name = "model.layers.1.self_attn.q_proj.weight"
    handle = dict(trainer.model.named_parameters())[name].register_hook(lambda g: g * float("nan"))
    with pytest.raises(NonFiniteError, match=rf"gradient of {name} is not finite at policy version 1"):
        one_update(trainer)
    handle.remove()
    assert trainer.version == 1
    assert largest_gap(before, masters(trainer)) == 0
    assert trainer.export().manifest == state
    clean = make_trainer()
    one_update(clean)
    for each in (trainer, clean):
        one_update(each, 3)
    assert largest_gap(masters(clean), masters(trainer)) == 0


def test_a_log_prob_that_is_not_finite_names_token_position_and_row() -> None:
    trainer = make_trainer()
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight[:] = float("nan")
    with pytest.raises(NonFiniteError, match=r"log-prob of token \d+ at position \d+ of row \d+ is not finite"):
        one_update(trainer)


def test_a_step_without_gradient_moves_nothing_even_with_momentum() -> None:
    for skip in (True, False):
        trainer = make_trainer()
        one_update(trainer)
        before = masters(trainer)
        rows = [t for g in make_groups(SHAPES, lambda g, m: 1.0) for t in g]
        table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
        plan = UpdatePlan(1, 100, 10_000, skip_zero_advantage=skip)
        result = update_policy(trainer, table, train_sequences(rows), algorithm_row("grpo").spec, plan)
        assert trainer.version == 1
        assert result.steps[0].grad_norm == 0.0
        assert largest_gap(before, masters(trainer)) == 0
        assert np.isfinite(table.trainer_logprob[table.loss_mask]).all()


def test_the_clip_is_of_the_global_norm() -> None:
    """With plain AdamW a scaled gradient gives the same first step; the recorded norm is that before clipping."""
    loose, tight = make_trainer(gradient_clip=1e9), make_trainer(gradient_clip=1e-3)
    assert one_update(loose).steps[0].grad_norm == one_update(tight).steps[0].grad_norm
    moments = [
        torch.cat([t.masters.adamw.state[m]["exp_avg"].flatten() for m in t.masters.tensors.values()]).norm()
        for t in (loose, tight)
    ]
    assert float(moments[1]) == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert float(moments[0]) > float(moments[1])


def test_rates_of_every_schedule() -> None:
    def rates(schedule: Any, updates: int = 6) -> list[float]:
        settings = OptimizerSettings(1.0, updates, warmup_updates=2, schedule=schedule)
        return [round(settings.rate_at(i), 4) for i in range(updates + 2)]

    assert rates("constant") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates("linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates("cosine") == [0.5, 1.0, 1.0, 0.8536, 0.5, 0.1464, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("lora", [False, True])
def test_the_exported_policy_is_the_one_that_is_trained(kind: str, lora: bool) -> None:
    """An engine with the exported weights gives the trainer's log-probs, adapters merged or not."""
    source = make_model(kind)
    engine = NativeEngine(source, torch.float32, NativeSettings(64, 1 << 24, 8))
    trainer = make_trainer(source, rate=5e-3, lora=lora)
    frozen = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    for seed in range(3):
        one_update(trainer, seed)
    assert all(torch.equal(p, frozen[n]) for n, p in trainer.model.named_parameters() if n in frozen)
    assert bool(frozen) == lora
    engine.load_weights(trainer.export())
    assert engine.stats().policy_version == 3
    prompt = np.arange(7, 15, dtype=np.int32)
    sampled = engine.run([Request("r", prompt, SamplingParams(10, seed=4))])[0].segments[0]
    assert sampled.logprobs is not None
    rows = [t for g in make_groups(SHAPES, lambda g, m: 1.0) for t in g]
    rows[0].segments[0], rows[0].segments[1] = type(sampled)(rows[0].segments[0].origin, prompt), sampled
    rows = rows[:1]
    table = RowTable.of(rows, np.ones(1, bool), [0.0])
    trainer.score(plan_blocks(trainer, train_sequences(rows), PLAN), table)
    np.testing.assert_allclose(table.trainer_logprob[len(prompt) :], sampled.logprobs, atol=2e-5)
    if lora:
        merged = merged_state(trainer.model)
        assert all(torch.equal(merged[n], t) for n, t in trainer.export().tensors.items())


def test_begin_forgets_what_an_unfinished_step_left() -> None:
    trainer, clean = make_trainer(), make_trainer()
    rows = [t for g in make_groups(SHAPES, lambda g, m: float(m)) for t in g]
    table = RowTable.of(rows, np.ones(len(rows), bool), [0.0] * len(rows))
    table.set_advantages(np.arange(len(rows)) - 3.0)
    totals = step_totals(torch.from_numpy(table.trained_tokens), torch.from_numpy(table.group_of_row))
    trainer.begin(totals, algorithm_row("grpo").spec)
    for blocks in plan_blocks(trainer, train_sequences(rows), PLAN):
        trainer.accumulate(blocks, table)
    for each in (trainer, clean):
        one_update(each)
    assert largest_gap(masters(clean), masters(trainer)) == 0

"""References that stay, follow and reset; what they hold, and what a checkpoint brings back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import make_groups, make_model, make_trainer

from posttrain.errors import InputError
from posttrain.model.head import HeadSettings
from posttrain.model.packing import TrainSequence, pack
from posttrain.policy.divergence_head import Divergence, HeadInput, token_divergences
from posttrain.policy.reference import Reference
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, plan_blocks
from posttrain.settings.objective import Anchor

HEAD = HeadSettings(16)
PLAN = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)
ROWS = [t for g in make_groups([(5, [4, 7]), (3, [6, 2])], lambda g, m: 0.0) for t in g]
SEQUENCES: list[TrainSequence] = train_sequences(ROWS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def reference_of(trainer: Trainer, **spec: Any) -> Reference:
    return Reference(trainer.model, trainer.lora, 1.0, HEAD, Anchor(weight=0.1, **spec))


def scores(reference: Reference, trainer: Trainer) -> np.ndarray:
    table = RowTable.of(ROWS, np.ones(len(ROWS), bool), [0.0] * len(ROWS))
    reference.score(plan_blocks(trainer, SEQUENCES, PLAN), table)
    return table.reference_logprob[table.loss_mask]


def own_scores(trainer: Trainer) -> np.ndarray:
    table = RowTable.of(ROWS, np.ones(len(ROWS), bool), [0.0] * len(ROWS))
    trainer.score(plan_blocks(trainer, SEQUENCES, PLAN), table)
    return table.trainer_logprob[table.loss_mask]


@torch.no_grad()
def move(trainer: Trainer, seed: int) -> None:
    """Weights somewhere else, masters and copies alike."""
    generator = torch.Generator().manual_seed(seed)
    for name, master in trainer.masters.tensors.items():
        master.add_(0.05 * torch.randn(master.shape, generator=generator).to(master.dtype))
        parameter = dict(trainer.model.named_parameters())[name]
        if parameter is not master:
            parameter.copy_(master)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_average_equals_the_hand_computation(dtype: torch.dtype) -> None:
    """Steps 2 and 4 of rate 0.25, in float32 whatever the compute type; batches between change nothing."""
    trainer = make_trainer(make_model(dtype=dtype))
    reference = reference_of(trainer, reference="ema", ema_rate=0.25, ema_every=2)
    expected = {n: p.detach().double().clone() for n, p in trainer.masters.tensors.items()}
    for step in range(1, 6):
        move(trainer, step)
        assert reference.follow(step, trainer.masters.tensors) == (step % 2 == 0)
        if step % 2 == 0:
            for name, value in expected.items():
                value.mul_(0.75).add_(0.25 * trainer.masters.tensors[name].detach().double())
    held = dict(reference._model.named_parameters())
    for name, value in expected.items():
        assert held[name].dtype == dtype
        torch.testing.assert_close(reference._moved[name].double(), value, rtol=1e-6, atol=1e-7)
        assert torch.equal(held[name], reference._moved[name].to(dtype))


def test_a_small_rate_does_not_round_away_in_bfloat16() -> None:
    trainer = make_trainer(make_model(dtype=torch.bfloat16))
    reference = reference_of(trainer, reference="ema", ema_rate=1e-3, ema_every=1)
    before = scores(reference, trainer)
    move(trainer, 0)
    for step in range(1, 3001):
        reference.follow(step, trainer.masters.tensors)
    share = 1 - (1 - 1e-3) ** 3000
    name, master = next(iter(trainer.masters.tensors.items()))
    start = dict(make_model(dtype=torch.bfloat16).named_parameters())[name].detach().float()
    torch.testing.assert_close(reference._moved[name], start + share * (master.detach() - start), rtol=1e-3, atol=1e-4)
    assert np.abs(scores(reference, trainer) - before).max() > 0.1


@pytest.mark.parametrize("lora", [False, True])
def test_a_reset_happens_at_exactly_its_step_and_holds_that_policy(lora: bool) -> None:
    trainer = make_trainer(lora=lora)
    reference = reference_of(trainer, reset_every=3)
    start = own_scores(trainer)
    for step in range(1, 3):
        move(trainer, step)
        assert not reference.follow(step, trainer.masters.tensors)
        np.testing.assert_allclose(scores(reference, trainer), start, atol=1e-5)
    move(trainer, 3)
    assert reference.follow(3, trainer.masters.tensors)
    policy = own_scores(trainer)
    np.testing.assert_allclose(scores(reference, trainer), policy, atol=1e-5)
    move(trainer, 4)
    assert not reference.follow(4, trainer.masters.tensors)
    np.testing.assert_allclose(scores(reference, trainer), policy, atol=1e-5)
    assert np.abs(own_scores(trainer) - policy).max() > 1e-3
    assert reference.state.resets == 1


def test_stagnation_counts_evaluations_since_the_best() -> None:
    trainer = make_trainer()
    reference = reference_of(trainer, reset_on_stagnation=2)
    found = [
        reference.judge(reward, trainer.masters.tensors) for reward in (0.1, 0.3, 0.3, 0.35, 0.2, 0.35, 0.1, 0.0, 0.1)
    ]
    assert found == [False, False, False, False, False, True, False, False, True]
    assert reference.state.resets == 2
    never = reference_of(trainer)
    assert not any(never.judge(0.0, trainer.masters.tensors) for _ in range(9))


def test_under_lora_the_initial_reference_is_the_base_without_a_second_copy() -> None:
    model = make_model()
    start = own_scores(make_trainer(make_model()))
    trainer = make_trainer(model, lora=True)
    held = sum(p.numel() for p in model.parameters())
    reference = reference_of(trainer)
    move(trainer, 1)
    np.testing.assert_allclose(scores(reference, trainer), start, atol=1e-6)
    assert reference._model is model
    assert sum(p.numel() for p in model.parameters()) == held
    assert reference._moved == {}
    moved = own_scores(trainer)
    scores(reference, trainer)
    np.testing.assert_allclose(own_scores(trainer), moved, atol=1e-5)


def test_an_average_of_adapters_is_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.anchor\.reference = 'ema'"):
        reference_of(make_trainer(lora=True), reference="ema")


@pytest.mark.parametrize(
    ("lora", "spec"),
    [
        (False, {"reference": "ema", "ema_rate": 0.3, "ema_every": 1}),
        (False, {"reset_every": 2}),
        (True, {"reset_every": 2}),
        (False, {"reset_on_stagnation": 2, "target_kl": 0.01}),
    ],
)
def test_a_checkpoint_brings_everything_back(lora: bool, spec: dict[str, Any], tmp_path: Path) -> None:
    def run(reference: Reference, trainer: Trainer, steps: range) -> None:
        for step in steps:
            move(trainer, step)
            reference.follow(step, trainer.masters.tensors)
            reference.adapt(0.5)
            reference.judge(0.4 if step == 2 else 0.1, trainer.masters.tensors)

    whole, resumed = make_trainer(lora=lora), make_trainer(lora=lora)
    straight, first = reference_of(whole, **spec), reference_of(resumed, **spec)
    run(straight, whole, range(1, 7))
    run(first, resumed, range(1, 4))
    first.save(tmp_path)
    second = reference_of(make_trainer(lora=lora), **spec)
    second.load(tmp_path)
    assert second.state == first.state
    run(second, resumed, range(4, 7))
    if lora:
        second._lora, second._model = resumed.lora, resumed.model
    np.testing.assert_allclose(scores(second, resumed), scores(straight, whole), atol=1e-5)
    assert second.state == straight.state
    assert straight.state.resets + (spec.get("reference") == "ema") > 0


def test_a_reference_that_never_moved_costs_a_checkpoint_nothing(tmp_path: Path) -> None:
    trainer = make_trainer()
    reference = reference_of(trainer)
    reference.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["reference.json"]
    reference.load(tmp_path)
    with pytest.raises(InputError, match="holds no reference"):
        reference.load(tmp_path / "elsewhere")


def test_another_models_reference_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer()
    reference = reference_of(trainer, reset_every=1)
    reference.follow(1, trainer.masters.tensors)
    reference.save(tmp_path)
    other = make_trainer(make_model("qwen3"))
    with pytest.raises(InputError, match="not of this model"):
        reference_of(other, reset_every=1).load(tmp_path)


def test_the_weight_follows_the_target() -> None:
    reference = reference_of(make_trainer(), target_kl=0.1)
    factors = []
    for divergence in (0.2, 0.2, 0.12, 0.01, 0.08):
        reference.adapt(divergence)
        factors.append(reference.state.factor)
    assert factors == [2.0, 4.0, 4.0, 2.0, 2.0]
    fixed = reference_of(make_trainer())
    fixed.adapt(5.0)
    assert fixed.state.factor == 1.0


@pytest.mark.parametrize("lora", [False, True])
def test_its_whole_distributions_are_those_it_scores_with(lora: bool) -> None:
    trainer = make_trainer(lora=lora)
    reference = reference_of(trainer)
    move(trainer, 1)
    blocks = plan_blocks(trainer, SEQUENCES, PLAN)[0]
    given = reference.head_input(blocks)
    table = RowTable.of(ROWS, np.ones(len(ROWS), bool), [0.0] * len(ROWS))
    reference.score([blocks], table)
    packed = pack(blocks)
    logprobs = given.logits(slice(None)).log_softmax(-1)
    chosen = logprobs.gather(1, torch.from_numpy(packed.target_ids)[:, None])[:, 0]
    np.testing.assert_allclose(table.reference_logprob[table.at(packed)], chosen.detach().numpy(), atol=1e-5)
    zero = token_divergences(HeadInput(given.hidden, given.weight), given, Divergence(1.0))
    assert float(zero.detach().abs().max()) < 1e-6


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 0), (torch.bfloat16, 1)])
def test_a_float32_reference_is_its_own_average(dtype: torch.dtype, copies: int) -> None:
    trainer = make_trainer(make_model(dtype=dtype))
    reference = reference_of(trainer, reference="ema", ema_rate=0.5, ema_every=1)
    reference.follow(1, trainer.masters.tensors)
    own = {p.data_ptr() for p in reference._model.parameters()}
    assert all((t.data_ptr() not in own) == bool(copies) for t in reference._moved.values())
    assert all(t.dtype == torch.float32 for t in reference._moved.values())

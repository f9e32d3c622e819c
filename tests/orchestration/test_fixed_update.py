"""One step on given rows against the plain way: one row at a time, full logits, no packing."""

from __future__ import annotations

import copy
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.model.attention import ATTENTION_NAME, register_attention
from posttrain.model.forward import cost_model, prepare_model
from posttrain.model.head import HeadSettings
from posttrain.model.load import load_policy
from posttrain.model.reward_head import attach_reward_head
from posttrain.orchestration.fixed_data.batch import FixedBatch
from posttrain.orchestration.fixed_data.dataset import Example, rows_of_step
from posttrain.orchestration.fixed_data.methods import method_of
from posttrain.orchestration.fixed_data.records import Record
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.orchestration.fixed_data.style import (
    FEATURES,
    correlation,
    features,
    fit_style,
    label_auc,
    pair_auc,
    pair_features,
)
from posttrain.policy.fixed_update import fixed_update, plan_units, score_rows
from posttrain.policy.trainer import OptimizerSettings, Trainer
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.parts.supervised import Supervised
from posttrain.trajectory import Message

TEXTS = [("ab", "cde", "f"), ("ghijk", "l", "mnopq"), ("r", "st", "uvw"), ("xy", "abcdef", "gh"), ("ab", "q", "rs")]


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    register_attention()
    policy = load_policy("tiny:llama", attention=ATTENTION_NAME, seed=3)
    prepare_model(policy.model)
    attach_reward_head(policy.model, seed=1)
    return policy


def trainer_of(loaded, rate=0.0):
    settings = OptimizerSettings(max(rate, 1e-30), 10, gradient_clip=1e9)
    return Trainer(copy.deepcopy(loaded.model), settings, HeadSettings(), 1.0, with_entropy=False)


def examples_of(loaded, kind):
    renderer = Renderer(loaded.tokenizer, loaded.facts.eos_token_ids)
    found = []
    for number, (prompt, right, wrong) in enumerate(TEXTS):
        before = (Message("user", prompt),)
        record = {
            "pairs": Record("row", before, (right, wrong), margin=0.1 * number),
            "answers": Record("row", before, (right,), desirable=number % 2 == 0),
            "conversations": Record("row", (*before, Message("assistant", right))),
        }[kind]
        found.append(Example(record, renderer.answers(record)))
    return found


def plain_values(model, batch, scorer_is_reward):
    """The value of each row by transformers' own forward on that row alone."""
    model.set_attn_implementation("eager")
    values = []
    for unit in batch.units:
        for sequence in unit:
            ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
            if scorer_is_reward:
                hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
                values.append(model.score(hidden)[0].double())
            else:
                logprobs = model(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
                picked = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]
                values.append(picked[torch.from_numpy(sequence.target_mask[1:])].sum())
    return torch.stack(values)


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step_gradients(loaded, batch, method, loss, limit, order=None):
    """Loss and gradients of a step, caught before the optimizer uses them."""
    trainer = trainer_of(loaded)
    units = batch.units if order is None else [batch.units[i] for i in order]
    caught = {}

    def step():
        caught.update({name: g.clone() for name, g in gradients(trainer.model).items()})
        return Trainer.step(trainer)

    trainer.step = step
    result = fixed_update(trainer, plan_units(units, trainer.cost, limit, limit**2), len(batch), loss, method.scorer)
    return result, caught


@pytest.mark.parametrize("name", FIXED_ROWS)
@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_packed_steps_equal_rows_computed_one_by_one(loaded, name, limit):
    row = FIXED_ROWS[name]
    method, examples = method_of(row.part), examples_of(loaded, row.row_kind)
    reference = -5.0 - np.random.default_rng(0).random((len(examples), method.answers))
    batch = FixedBatch.of(examples, method.answers, reference)
    loss = method.begin(batch, 0.3)
    result, packed = step_gradients(loaded, batch, method, loss, limit, order=[3, 0, 4, 1, 2])

    model = copy.deepcopy(loaded.model)
    values = plain_values(model, batch, name == "reward_model")
    plain = loss(np.arange(len(batch)), values)
    plain.backward()
    np.testing.assert_allclose(result.loss, plain.item(), rtol=1e-6)
    np.testing.assert_allclose(result.values, values.detach(), rtol=1e-5)
    expected = gradients(model)
    assert set(packed) == set(expected)
    for parameter, gradient in expected.items():
        scale = float(gradient.abs().max())
        np.testing.assert_allclose(packed[parameter], gradient, rtol=0, atol=2e-5 * scale, err_msg=parameter)
    assert result.micro_batches == {1: 5, 10_000: 1}.get(limit, result.micro_batches)


def test_sequence_mean_weighs_rows_alike_and_token_mean_tokens(loaded):
    batch = FixedBatch.of(examples_of(loaded, "conversations"), 1)
    values = -np.arange(1.0, 6.0)
    rows = np.arange(5)
    token = method_of(Supervised()).begin(batch, 0.0)(rows, torch.from_numpy(values))
    sequence = method_of(Supervised(aggregation="sequence_mean")).begin(batch, 0.0)(rows, torch.from_numpy(values))
    assert float(token) == pytest.approx(15.0 / batch.tokens.sum())
    assert float(sequence) == pytest.approx(float(np.mean(np.arange(1.0, 6.0) / batch.tokens)))


@given(limit=st.integers(1, 120), order=st.permutations(range(5)))
def test_a_pair_is_never_split_and_order_changes_no_plan(loaded, limit, order):
    batch = FixedBatch.of(examples_of(loaded, "pairs"), 2)
    cost = cost_model(loaded.model)

    def shape(units):
        plan = plan_units(units, cost, limit, 10**9)
        return [sorted(s.index for block in blocks for s in block.sequences) for blocks in plan]

    plan = shape(batch.units)
    assert plan == shape([batch.units[i] for i in order])
    assert sorted(index for part in plan for index in part) == list(range(10))
    for part in plan:
        assert all(index ^ 1 in part for index in part)


def test_scoring_leaves_rows_that_are_not_planned_unknown(loaded):
    batch = FixedBatch.of(examples_of(loaded, "pairs"), 2)
    trainer = trainer_of(loaded)
    values = score_rows(trainer, plan_units(batch.units[:2], trainer.cost, 100, 10**6), len(batch))
    assert np.isfinite(values[:4]).all()
    assert np.isnan(values[4:]).all()


@given(rows=st.integers(1, 12), size=st.integers(1, 12), seed=st.integers(0, 5))
def test_every_pass_visits_every_row_once_in_an_order_of_its_own(rows, size, seed):
    size = min(size, rows)
    steps = 2 * rows
    stream = [i for step in range(1, steps + 1) for i in rows_of_step(step, size, rows, seed)]
    assert len(stream) == steps * size
    for start in range(0, len(stream) - rows + 1, rows):
        assert sorted(stream[start : start + rows]) == list(range(rows))


def test_passes_differ_and_the_seed_decides():
    assert rows_of_step(1, 20, 20, 0) != rows_of_step(2, 20, 20, 0)
    assert rows_of_step(1, 20, 20, 0) != rows_of_step(1, 20, 20, 1)


def test_style_counts_and_its_prediction_of_labels_that_follow_length_alone():
    assert features("# a\n\n- b, c\n**d**", 9).tolist() == [9, 3, 7, 5]
    rng = np.random.default_rng(0)
    chosen = np.c_[rng.integers(10, 20, 200), rng.integers(0, 5, (200, 3))].astype(float)
    rejected = np.c_[rng.integers(1, 10, 200), rng.integers(0, 5, (200, 3))].astype(float)
    assert fit_style(chosen[:100], rejected[:100]).accuracy(chosen[100:], rejected[100:]) > 0.95
    swap = rng.random(200) < 0.5
    mixed = [np.where(swap[:, None], a, b) for a, b in ((chosen, rejected), (rejected, chosen))]
    assert abs(fit_style(mixed[0][:100], mixed[1][:100]).accuracy(mixed[0][100:], mixed[1][100:]) - 0.5) < 0.15
    constant = np.ones((5, len(FEATURES)))
    assert fit_style(constant, constant).accuracy(constant, constant) == 0.5


def test_areas_and_correlations():
    assert pair_auc([2, 1, 1], [1, 1, 2]) == pytest.approx(0.5)
    assert label_auc([3, 2, 1], [True, False, False]) == 1.0
    assert label_auc([1, 1], [True, False]) == 0.5
    assert np.isnan(label_auc([1, 1], [True, True]))
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert np.isnan(correlation([1, 1, 1], [2, 4, 6]))
    assert np.isnan(correlation([1, 2], [2, 4]))


def test_pair_accuracy_counts_ties_one_half_and_does_not_depend_on_order(loaded):
    examples = examples_of(loaded, "pairs")
    method = method_of(FIXED_ROWS["dpo"].part)
    values = np.array([-1.0, -2.0, -3.0, -3.0, -5.0, -4.0, -1.0, -9.0, -2.0, -2.5])
    reference = np.zeros((5, 2))
    measured = method.measure(FixedBatch.of(examples, 2, reference), values)
    assert measured["accuracy"] == pytest.approx(3.5 / 5)
    assert measured["margin"] == pytest.approx(0.1 * (1 + 0 - 1 + 8 + 0.5) / 5)
    for order in list(permutations(range(5)))[::17]:
        index = np.array(order)
        again = method.measure(
            FixedBatch.of([examples[i] for i in index], 2, reference), values.reshape(5, 2)[index].ravel()
        )
        assert again == pytest.approx(measured)
    assert pair_features(examples)[0].shape == (5, len(FEATURES))

"""The anchor's gradient against the rest's: by the definition, in every place, and without touching the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from policies import make_groups, make_model, make_trainer

from posttrain.model.head import HeadSettings
from posttrain.policy.anchor_gradient import AnchorGradient, anchor_gradient
from posttrain.policy.divergence_head import Divergence
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.teacher import Teacher
from posttrain.policy.terms import DivergenceTerm
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan, plan_blocks
from posttrain.settings.objective import Aggregation, Anchor, ObjectiveSpec, Ratio, TrustRegion

ROWS = [t for g in make_groups([(5, [4, 7]), (3, [6, 2])], lambda g, m: 0.0) for t in g]
PLAN = UpdatePlan(1, 10_000, 10_000_000, skip_zero_advantage=True)
SIGNS = np.array([1.0, -1.0, 0.5, -0.5])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def spec_of(**anchor: Any) -> ObjectiveSpec:
    return ObjectiveSpec(
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="token_mean"),
        anchor=Anchor(**anchor),
    )


def table_of(trainer: Trainer, weight: float) -> RowTable:
    table = RowTable.of(ROWS, np.ones(4, bool), [weight] * 4)
    trainer.score(plan_blocks(trainer, train_sequences(ROWS), PLAN), table)
    random = np.random.default_rng(0)
    table.reference_logprob = (table.trainer_logprob + random.normal(0, 0.5, len(table.loss_mask))).astype(np.float32)
    table.set_advantages(SIGNS)
    return table


def measured(trainer: Trainer, table: RowTable, spec: ObjectiveSpec, **given: Any) -> AnchorGradient | None:
    blocks = plan_blocks(trainer, train_sequences(ROWS), PLAN)[0]
    rest = given.pop("unanchored", table.advantage)
    return anchor_gradient(trainer, blocks, table, rest, spec, **given)


def test_an_anchor_that_undoes_the_reward_has_cosine_minus_one() -> None:
    """k2's gradient is weight x (log pi - log reference) per token: advantages of just that are cancelled."""
    trainer = make_trainer()
    table = table_of(trainer, 0.2)
    x = np.where(table.loss_mask, table.trainer_logprob - table.reference_logprob, 0.0)
    spec = spec_of(weight=0.2, estimator="k2")
    for share, sign in ((1.0, -1.0), (-0.5, 1.0)):
        table.advantage = (share * 0.2 * x).astype(np.float32)
        found = measured(trainer, table, spec)
        assert found is not None
        assert found.cosine == pytest.approx(sign, abs=1e-4)
        assert found.ratio == pytest.approx(1 / abs(share), rel=1e-4)


def test_the_ratio_is_linear_in_the_weight_and_the_step_is_untouched() -> None:
    trainer = make_trainer()
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    ratios: list[float] = []
    for weight in (0.1, 0.3):
        found = measured(trainer, table_of(trainer, weight), spec_of(weight=weight, estimator="k3"))
        assert found is not None
        ratios.append(found.ratio)
        assert -1.0 <= found.cosine <= 1.0
        assert found.signals().keys() == {"policy/anchor_gradient_ratio", "policy/anchor_gradient_cosine"}
    assert ratios[1] == pytest.approx(3 * ratios[0], rel=1e-4)
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())
    assert all(m.grad is None for m in trainer.masters.tensors.values())


def test_an_anchor_in_the_reward_is_the_difference_of_the_advantages() -> None:
    """A penalty that takes away three quarters of every advantage pulls against it with three quarters of its size."""
    trainer = make_trainer()
    table = table_of(trainer, 0.0)
    unanchored = table.advantage.copy()
    table.advantage = 0.25 * table.advantage
    found = measured(trainer, table, spec_of(weight=0.1, place="reward", estimator="k1"), unanchored=unanchored)
    assert found is not None
    assert found.ratio == pytest.approx(0.75, rel=1e-4)
    assert found.cosine == pytest.approx(-1.0, abs=1e-6)


def test_a_term_over_the_vocabulary_is_the_anchor_only_by_its_name() -> None:
    trainer = make_trainer()
    table = table_of(trainer, 0.0)
    other = Teacher(make_model(seed=4), 1.0, HeadSettings(16))
    weights = np.full(len(table.advantage), 0.1, np.float32)
    spec = spec_of(weight=0.1, estimator="full_vocabulary")
    terms = {n: DivergenceTerm(n, Divergence(1.0), other.head_input, weights) for n in ("anchor", "teacher")}
    found = measured(trainer, table, spec, terms=[terms["anchor"]])
    assert found is not None
    assert found.ratio > 0.01
    assert measured(trainer, table, spec, terms=[terms["teacher"]]) is None


def test_nothing_to_compare_is_no_number() -> None:
    trainer = make_trainer()
    spec = spec_of(weight=0.1, estimator="k2")
    silent = table_of(trainer, 0.1)
    silent.set_advantages(np.zeros(4))
    assert measured(trainer, silent, spec) is None
    assert measured(trainer, table_of(trainer, 0.0), spec) is None

"""What is measured of a batch is of the tokens it says."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from policies import make_groups

from posttrain.orchestration.batch import Batch, anchor_kl, mean_entropy
from posttrain.policy.rows import RowTable, train_sequences


def scored_batch(in_loss: list[bool], anchor_weights: list[float]) -> Batch:
    rows = [t for g in make_groups([(3, [2, 4]), (2, [5, 1])], lambda g, m: 0.0) for t in g]
    table = RowTable.of(rows, np.array(in_loss), [0.0] * 4)
    random = np.random.default_rng(0)
    sampled = np.concatenate([t.model_mask for t in rows])
    for column in (table.trainer_logprob, table.reference_logprob, table.entropy):
        column[sampled] = random.normal(-2.0, 0.5, sampled.sum())
    nothing = cast("Any", None)
    return Batch(rows, table, train_sequences(rows), np.zeros(4), np.array(anchor_weights), nothing, nothing, None, ())


def test_entropy_is_of_the_trained_tokens_alone() -> None:
    batch = scored_batch([True, False, True, True], [0.0] * 4)
    table = batch.table
    trained = np.concatenate([table.entropy[table.row(i)][3 if i < 2 else 2 :] for i in (0, 2, 3)])
    assert len(trained) == 2 + 5 + 1
    assert mean_entropy(batch) == pytest.approx(trained.mean())


def test_anchor_kl_is_of_the_trained_tokens_of_anchored_rows() -> None:
    batch = scored_batch([True, True, True, False], [0.1, 0.0, 0.2, 0.2])
    table = batch.table
    x = np.concatenate([(table.trainer_logprob - table.reference_logprob)[table.row(i)] for i in (0, 2)])
    x = x[np.isfinite(x)].astype(np.float64)
    assert len(x) == 2 + 5
    assert anchor_kl(batch) == pytest.approx(np.mean(np.exp(-x) - 1 + x))


def test_without_an_anchored_token_there_is_no_anchor_kl() -> None:
    assert anchor_kl(scored_batch([True] * 4, [0.0] * 4)) is None
    assert anchor_kl(scored_batch([False, False, True, True], [0.1, 0.1, 0.0, 0.0])) is None

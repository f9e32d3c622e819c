"""Everything the policy and the comparison report is defined in the signal registry."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.logprobs.comparison import compare
from posttrain.policy.advantages import sequence_advantages
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import TokenBatch
from posttrain.policy.group_statistics import group_statistics
from posttrain.policy.objective import objective
from posttrain.settings.algorithms import algorithm_row
from posttrain.signals.registry import signal_for


def reported() -> list[str]:
    x = torch.tensor([-1.0, -2.0])
    ones = torch.ones(2, dtype=torch.bool)
    batch = TokenBatch(x, x, x, ones, torch.tensor([0, 1]), reference_logprobs=x - 0.1, entropies=-x)
    totals = step_totals(torch.tensor([1, 1]), torch.tensor([0, 0]))
    spec = algorithm_row("grpo").spec
    rewards = np.array([1.0, 0.0])
    groups = group_statistics(
        rewards, rewards == 1, np.ones(2, int), sequence_advantages(rewards, [0, 0], spec.advantage)
    )
    comparison = compare(x.numpy(), x.numpy() - 0.1, ones.numpy())
    return [*objective(batch, totals, spec).statistics.finalize(2), *groups.finalize(), *comparison.finalize()]


@pytest.mark.parametrize("name", reported())
def test_every_reported_name_is_registered(name):
    assert signal_for(name).definition

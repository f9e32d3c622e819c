"""Learning that ends early: a rise, then a long stand below what is possible."""

from __future__ import annotations

import numpy as np
import pytest
from series import history

from posttrain.faultmap.detectors import plateau
from posttrain.faultmap.history import History

N = 320
X = np.arange(N) / (N - 1)


def run(seed: int, reward: np.ndarray, **more: np.ndarray) -> History:
    rng = np.random.default_rng(seed)
    noisy = reward + rng.normal(0, 0.02, len(reward))
    courses = {
        "reward/mean": noisy,
        "reward/std": np.sqrt(np.clip(reward * (1 - reward), 1e-4, None)),
        "reward/zero_variance_groups": np.clip(0.3 + rng.normal(0, 0.05, len(reward)), 0, 1),
        "policy/grad_norm": np.full(len(reward), 0.3),
        "policy/entropy": 0.8 - 0.2 * np.arange(len(reward)) / len(reward),
    }
    return history(courses | {name.replace("__", "/"): v for name, v in more.items()})


STANDS = 0.2 + 0.35 / (1 + np.exp(-60 * (X - 0.1)))


@pytest.mark.parametrize("seed", range(4))
def test_a_long_stand_after_a_rise_is_named_with_what_the_log_blames(seed: int) -> None:
    (finding,) = plateau.judge(run(seed, STANDS))
    assert finding.cause == "tasks_exhausted"
    assert 30 <= finding.onset_step <= 90
    (decayed,) = plateau.judge(run(seed, STANDS, policy__learning_rate=1e-5 * np.geomspace(1, 1e-3, N)))
    assert decayed.cause == "learning_rate_too_low"
    (spent,) = plateau.judge(run(seed, STANDS, policy__entropy=0.8 * np.exp(-1.9 * X)))
    assert spent.cause == "no_exploration"


@pytest.mark.parametrize("seed", range(4))
def test_what_still_rises_is_solved_never_rose_or_is_young_is_silent(seed: int) -> None:
    assert plateau.judge(run(seed, 0.2 + 0.5 * X)) == ()
    assert plateau.judge(run(seed, np.minimum(STANDS + 0.4, 0.95))) == ()
    assert plateau.judge(run(seed, np.full(N, 0.5))) == ()
    assert plateau.judge(run(seed, STANDS[:200])) == ()
    silent = np.full(N, 0.9)
    assert plateau.judge(run(seed, STANDS, reward__zero_variance_groups=silent)) == ()

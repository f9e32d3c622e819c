"""Two processes with uneven shares of a batch: their gradients and losses add up to those of one process."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from critic_shares import ROWS, share_of_gradient


def test_uneven_shares_in_two_processes_add_up() -> None:
    order = np.random.default_rng(0).permutation(ROWS).tolist()
    whole, loss = share_of_gradient(range(ROWS), 10_000)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        shares = pool.starmap(share_of_gradient, [(order[:3], 15), (order[3:], 60)])
    assert sum(part for _, part in shares) == pytest.approx(loss, rel=1e-5)
    size = max(float(np.abs(g).max()) for g in whole.values())
    for name, gradient in whole.items():
        summed = sum(share[name] for share, _ in shares)
        np.testing.assert_allclose(summed, gradient, rtol=0, atol=2e-5 * size, err_msg=name)

"""The measure behind the comparison of baselines: an unbiased trace of a covariance, and estimators that agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def test_variance_is_the_trace_of_the_gradients_covariance() -> None:
    from harness.noise import Noise

    random = np.random.default_rng(0)
    gradients = random.normal(size=(7, 50)) * np.arange(50)
    noise = Noise()
    for gradient in gradients:
        noise.add(np.array([1.0, -2.0, 9.0]), np.array([True, True, False]), gradient)
    assert noise.variance == pytest.approx(np.cov(gradients.T).trace())
    assert noise.mean_square == pytest.approx(2.5)


def test_without_gradients_there_is_no_variance() -> None:
    from harness.noise import Noise

    noise = Noise()
    noise.add(np.ones(2), np.ones(2, bool), None)
    assert noise.variance is None

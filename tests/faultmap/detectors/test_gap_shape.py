"""What a gap's course and its extremes say: resets, a level reached after some updates, one tail missing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from series import history

from posttrain.faultmap.gap_shape import COLD_SHARE, cold_tail, levels_off, resets

Array = npt.NDArray[np.float64]


def noisy(values: Array, seed: int, share: float = 0.08) -> Array:
    return values * np.exp(np.random.default_rng(seed).normal(0.0, share, len(values)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("age", [3, 5, 8])
def test_data_of_one_age_levels_off(age: int, seed: int) -> None:
    updates = np.minimum(np.arange(1, 4 * age + 6), age).astype(float)
    assert levels_off(noisy(0.02 * updates, seed))


@pytest.mark.parametrize("seed", range(5))
def test_weights_that_are_kept_never_level_off_and_neither_does_what_is_there_at_once(seed: int) -> None:
    updates = np.arange(1.0, 40.0)
    for values in (0.02 * updates, 0.2 + 0.02 * updates, np.full(40, 0.1)):
        made = noisy(values, seed)
        assert not any(levels_off(made[:n]) for n in range(1, len(made) + 1))


@pytest.mark.parametrize("every", [4, 8, 20])
def test_weights_that_arrive_now_and_then_are_reset(every: int) -> None:
    age = np.arange(60) % every
    assert resets(noisy(0.02 * age + 1e-7, 0)[1:], 1e-7, 1e-4) >= 60 // every - 1
    assert resets(noisy(0.02 * (age + 1.0), 1), 0.003, 1e-4) >= (60 // every - 1 if every >= 8 else 0)


def test_old_data_and_other_numbers_are_never_reset() -> None:
    assert resets(noisy(0.02 * np.minimum(np.arange(1.0, 60.0), 6.0), 0, 0.3), 0.003, 1e-4) == 0
    assert resets(noisy(np.full(60, 0.2), 1, 0.3), 0.003, 1e-4) == 0


def extremes(sampler: Array, trainer: Array, rng: np.random.Generator, tokens: int = 3000) -> tuple[float, float]:
    """Largest |d| and smallest p / q over tokens drawn from the sampler's distributions ([positions, words])."""
    position = rng.integers(0, len(sampler), tokens)
    word = np.array([rng.choice(sampler.shape[1], p=sampler[i]) for i in position])
    d = np.log(trainer[position, word]) - np.log(sampler[position, word])
    return float(np.abs(d).max()), float(np.exp(d.min()))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "is_cold"), [("temperature 0.6", True), ("rounding", False), ("old weights", False), ("hotter", False)]
)
def test_only_a_colder_sampler_lacks_one_tail(kind: str, is_cold: bool) -> None:
    rng = np.random.default_rng(7)
    points: list[tuple[float, float]] = []
    for _ in range(8):
        logits = rng.normal(0.0, 2.0, (40, 50))
        sampler = {
            "temperature 0.6": logits / 0.6,
            "rounding": logits + rng.normal(0.0, 0.1, logits.shape),
            "old weights": logits + rng.normal(0.0, 0.7, logits.shape),
            "hotter": logits / 1.4,
        }[kind]
        points.append(extremes(softmax(sampler), softmax(logits), rng))
    run = history({"logprobs/mismatch_max": [p[0] for p in points], "logprobs/ratio_min": [p[1] for p in points]})
    share = cold_tail(run, run.course("logprobs/mismatch_max").steps)
    assert (share >= COLD_SHARE) is is_cold


def test_the_tails_of_a_log_without_extremes_are_not_known() -> None:
    run = history({"logprobs/mismatch_max": [0.1] * 8})
    assert np.isnan(cold_tail(run, run.course("logprobs/mismatch_max").steps))

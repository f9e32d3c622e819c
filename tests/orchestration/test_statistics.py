"""Estimators against brute-force enumeration; intervals that respect clusters and seeds."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.orchestration.statistics import (
    AnswerClass,
    bootstrap_mean,
    majority_at_k,
    pass_at_k,
)


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(outcomes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_at_its_ends() -> None:
    assert pass_at_k(16, 1, 16) == 1.0
    assert pass_at_k(16, 0, 16) == 0.0
    assert pass_at_k(16, 4, 1) == 0.25
    assert pass_at_k(1000, 1, 500) == pytest.approx(0.5)


@pytest.mark.parametrize(("attempts", "successes", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_what_cannot_be_estimated_is_refused(attempts: int, successes: int, k: int) -> None:
    with pytest.raises(InputError):
        pass_at_k(attempts, successes, k)


@given(
    answers=st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8),
    right=st.sampled_from(["a", "b", "absent"]),
    data=st.data(),
)
@settings(max_examples=150)
def test_majority_is_the_mean_over_all_subsets(answers: list[str | None], right: str, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    subsets = list(itertools.combinations(answers, k))
    expected = 0.0
    for subset in subsets:
        votes = Counter(a for a in subset if a is not None)
        if votes:
            top = max(votes.values())
            winners = [a for a, n in votes.items() if n == top]
            expected += (right in winners) / len(winners)
    counts = Counter(a for a in answers if a is not None)
    classes = [AnswerClass(n, n if a == right else 0) for a, n in counts.items()]
    actual = majority_at_k(classes, answers.count(None), k)
    assert actual == pytest.approx(expected / len(subsets), abs=1e-9)


def test_majority_of_one_is_pass_at_one_and_an_answer_with_mixed_grades_counts_in_part() -> None:
    classes = [AnswerClass(5, 5), AnswerClass(11, 0)]
    assert majority_at_k(classes, 0, 1) == pytest.approx(5 / 16)
    assert majority_at_k(classes, 0, 16) == 0.0
    assert majority_at_k([AnswerClass(4, 1)], 0, 4) == pytest.approx(0.25)
    assert majority_at_k([], 3, 2) == 0.0


def test_majority_handles_many_attempts() -> None:
    classes = [AnswerClass(40, 40), *(AnswerClass(1, 0) for _ in range(88))]
    assert 0.95 < majority_at_k(classes, 0, 16) <= 1.0


def test_interval_repeats_with_the_seed_and_contains_the_mean() -> None:
    values = np.linspace(0, 1, 20)
    names = [str(i) for i in range(20)]
    first, again, other = (bootstrap_mean(values, names, seed=s) for s in (1, 1, 2))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.value == pytest.approx(0.5)
    assert first.low < 0.5 < first.high
    assert first.tasks == 20


def test_interval_is_wider_when_tasks_come_in_clusters() -> None:
    """Twenty copies of each of four values are four facts, not eighty."""
    values = np.repeat([0.0, 0.2, 0.6, 1.0], 20)
    apart = bootstrap_mean(values, [str(i) for i in range(80)])
    together = bootstrap_mean(values, [str(v) for v in values])
    assert together.value == apart.value
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    names = [str(i) for i in range(30)]
    hits = 0
    for trial in range(200):
        estimate = bootstrap_mean(generator.random(30) ** 2, names, seed=trial, resamples=400)
        hits += estimate.low <= 1 / 3 <= estimate.high
    assert 0.88 <= hits / 200 <= 0.99


def test_unusable_values_are_refused() -> None:
    for values in ([], [float("nan")], [1.0, 2.0]):
        with pytest.raises(InputError):
            bootstrap_mean(values, ["a"])

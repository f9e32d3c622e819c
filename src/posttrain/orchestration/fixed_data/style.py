"""How well the surface of an answer predicts which one was chosen: what a policy or a reward model could learn instead.

Legend: ``P`` pairs, ``F`` features.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.orchestration.fixed_data.dataset import Example

FEATURES = ("tokens", "lines", "punctuation", "markdown")
"""Trained tokens; lines that are not empty; punctuation characters; marks of Markdown (headings, lists, emphasis, code,
tables)."""

_PUNCTUATION = frozenset(string.punctuation)
_MARKS = ("#", "- ", "* ", "**", "`", "|", "> ")
_RIDGE, _ROUNDS = 1.0, 25

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StylePredictor:
    """A logistic regression on differences of features, fitted on one set of pairs."""

    scale: Array
    weights: Array

    def accuracy(self, chosen: Array, rejected: Array) -> float:
        """Share of pairs (P, F) it puts the right way round; a tie counts one half."""
        return _auc_of_differences(((chosen - rejected) / self.scale) @ self.weights)


def features(text: str, tokens: int) -> Array:
    """Float64 (F,) in the order of :data:`FEATURES`."""
    lines = [line for line in text.splitlines() if line.strip()]
    marks = sum(line.lstrip().startswith(_MARKS) for line in lines) + text.count("**") + text.count("`")
    return np.array([tokens, len(lines), sum(c in _PUNCTUATION for c in text), marks], np.float64)


def pair_features(pairs: Sequence[Example]) -> tuple[Array, Array]:
    """Features of chosen and rejected answers, float64 (P, F) each."""
    sides = [
        np.array([features(pair.record.answers[side], pair.answers[side].targets) for pair in pairs]).reshape(
            len(pairs), len(FEATURES)
        )
        for side in (0, 1)
    ]
    return sides[0], sides[1]


def pair_auc(chosen: npt.ArrayLike, rejected: npt.ArrayLike) -> float:
    """How well a number predicts "chosen": share of pairs where the chosen answer has more of it, ties one half.

    0.5 predicts nothing, 0 as much as 1. NaN without pairs.
    """
    return _auc_of_differences(np.asarray(chosen, np.float64) - np.asarray(rejected, np.float64))


def label_auc(values: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The same for single answers: share of (desirable, undesirable) couples in the right order. NaN without both."""
    numbers, desirable = np.asarray(values, np.float64), np.asarray(labels, np.bool_)
    return _auc_of_differences((numbers[desirable][:, None] - numbers[~desirable][None, :]).ravel())


def _auc_of_differences(difference: Array) -> float:
    if difference.size == 0:
        return float("nan")
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def correlation(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Pearson correlation of two (P,); NaN where fewer than three pairs or no spread make it say nothing."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def fit_style(chosen: Array, rejected: Array) -> StylePredictor:
    """Fit on pairs (P, F) by Newton's method with a ridge of 1 on standardised differences; no intercept, because
    swapping both answers swaps the label."""
    difference = chosen - rejected
    scale = np.sqrt((difference**2).mean(0))
    scale[scale == 0] = 1.0
    x = difference / scale
    weights = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30, 30)))
        gradient = x.T @ (1.0 - p) - _RIDGE * weights
        curvature = (x.T * (p * (1.0 - p))) @ x + _RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, gradient)
    return StylePredictor(scale, weights)

"""From values of rows to losses and signals, one class for each kind of loss.

``begin`` returns the loss of a step as a function of row numbers and values, with the step's own denominators;
``measure`` says what the values of a whole batch mean, without the prefix of the signals' names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from posttrain.orchestration.fixed_data.batch import Array, FixedBatch
from posttrain.orchestration.fixed_data.style import (
    FEATURES,
    correlation,
    label_auc,
    pair_auc,
    pair_features,
)
from posttrain.policy.fixed_update import RowLoss, RowScorer, summed_logprobs
from posttrain.policy.preference import (
    AnswerScores,
    PairScores,
    answer_losses,
    bradley_terry_losses,
    pair_losses,
)
from posttrain.policy.reward_rows import last_rewards
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling, Supervised

Rows = npt.NDArray[np.int64]


class Method(Protocol):
    """What the loop needs of a loss."""

    @property
    def answers(self) -> int:
        """Answers of an example that are trained together."""
        ...

    @property
    def scorer(self) -> RowScorer:
        """What a row's value is."""
        ...

    @property
    def reference(self) -> bool:
        """Whether log-probs of the initial weights are needed."""
        ...

    def begin(self, batch: FixedBatch, kl: float) -> RowLoss:
        """The loss of a step over ``batch``; ``kl`` is KTO's reference point."""
        ...

    def measure(self, batch: FixedBatch, values: Array) -> Mapping[str, float]:
        """Signals of a batch from its rows' values float64 (R,), by name without prefix."""
        ...

    def outcomes(self, batch: FixedBatch, values: Array) -> tuple[str, Array]:
        """What a gain is judged by: the name of the quantity and its value for each example, float64 (E,)."""
        ...


def method_of(part: Preference | Supervised | RewardModelling) -> Method:
    """The method that computes a part."""
    if isinstance(part, Supervised):
        return SupervisedMethod(part)
    if isinstance(part, RewardModelling):
        return RewardMethod(part)
    return PairMethod(part) if part.pairs else AnswerMethod(part)


@dataclass(frozen=True, slots=True)
class PairMethod:
    """DPO and its relatives."""

    spec: Preference
    answers: int = 2
    scorer: RowScorer = summed_logprobs

    @property
    def reference(self) -> bool:
        """As the row says."""
        return self.spec.reference

    def begin(self, batch: FixedBatch, kl: float) -> RowLoss:
        """See :func:`posttrain.policy.preference.pair_losses`."""

        def loss(rows: Rows, values: torch.Tensor) -> torch.Tensor:
            return pair_losses(self._scores(batch, rows, values), self.spec, len(batch.examples)).loss

        return loss

    def measure(self, batch: FixedBatch, values: Array) -> Mapping[str, float]:
        """Rewards, log-probs and what length has to do with them."""
        chosen, rejected = self._rewards(batch, values)
        found = pair_signals(batch, chosen, rejected) | {
            "chosen_logprob": float(values[0::2].mean()),
            "rejected_logprob": float(values[1::2].mean()),
            "ranking_accuracy": pair_auc(values[0::2], values[1::2]),
        }
        if self.spec.reference:
            change = (values[0::2] - batch.reference[0::2]).sum() / batch.tokens[0::2].sum()
            found["chosen_logprob_change"] = float(change)
        return found

    def outcomes(self, batch: FixedBatch, values: Array) -> tuple[str, Array]:
        """Whether each pair is the right way round, a tie one half."""
        chosen, rejected = self._rewards(batch, values)
        return "accuracy", _right(chosen - rejected)

    def _rewards(self, batch: FixedBatch, values: Array) -> tuple[Array, Array]:
        scores = self._scores(batch, np.arange(len(batch)), torch.from_numpy(values))
        losses = pair_losses(scores, self.spec, len(batch.examples))
        return losses.chosen_reward.numpy(), losses.rejected_reward.numpy()

    def _scores(self, batch: FixedBatch, rows: Rows, values: torch.Tensor) -> PairScores:
        chosen, rejected = _sides(rows)
        sides = [(values[where], rows[where]) for where in (chosen, rejected)]
        reference = [_at(batch.reference, of, values) for _, of in sides] if self.spec.reference else [None, None]
        tokens = [_at(batch.tokens, of, values) for _, of in sides]
        return PairScores(sides[0][0], sides[1][0], tokens[0], tokens[1], reference[0], reference[1])


@dataclass(frozen=True, slots=True)
class RewardMethod:
    """Bradley-Terry: values are rewards."""

    spec: RewardModelling
    answers: int = 2
    scorer: RowScorer = last_rewards
    reference: bool = False

    def begin(self, batch: FixedBatch, kl: float) -> RowLoss:
        """See :func:`posttrain.policy.preference.bradley_terry_losses`."""

        def loss(rows: Rows, values: torch.Tensor) -> torch.Tensor:
            chosen, rejected = _sides(rows)
            margins = _at(batch.margins, rows[chosen] // 2, values)
            pairs = len(batch.examples)
            return bradley_terry_losses(values[chosen], values[rejected], margins, self.spec, pairs).loss

        return loss

    def measure(self, batch: FixedBatch, values: Array) -> Mapping[str, float]:
        """Accuracy, rewards, and what length has to do with them."""
        return pair_signals(batch, values[0::2], values[1::2])

    def outcomes(self, batch: FixedBatch, values: Array) -> tuple[str, Array]:
        """Whether each pair is the right way round, a tie one half."""
        return "accuracy", _right(values[0::2] - values[1::2])


@dataclass(frozen=True, slots=True)
class AnswerMethod:
    """KTO."""

    spec: Preference
    answers: int = 1
    scorer: RowScorer = summed_logprobs
    reference: bool = True

    def begin(self, batch: FixedBatch, kl: float) -> RowLoss:
        """See :func:`posttrain.policy.preference.answer_losses`."""

        def loss(rows: Rows, values: torch.Tensor) -> torch.Tensor:
            return answer_losses(self._scores(batch, rows, values), self.spec, kl, len(batch)).loss

        return loss

    def measure(self, batch: FixedBatch, values: Array) -> Mapping[str, float]:
        """Rewards and log-probs of both labels, and what length has to do with them."""
        good, reward = batch.desirable, self._rewards(batch, values)
        found = {
            "accuracy": label_auc(reward, good),
            "length_auc": label_auc(batch.tokens, good),
            "length_margin_correlation": correlation(batch.tokens, reward),
        }
        if good.any():
            change = (values - batch.reference)[good].sum() / batch.tokens[good].sum()
            found |= {
                "chosen_reward": float(reward[good].mean()),
                "chosen_logprob": float(values[good].mean()),
                "chosen_logprob_change": float(change),
            }
        if not good.all():
            found |= {
                "rejected_reward": float(reward[~good].mean()),
                "rejected_logprob": float(values[~good].mean()),
            }
        if good.any() and not good.all():
            found["margin"] = found["chosen_reward"] - found["rejected_reward"]
            found["length_gap"] = float(batch.tokens[good].mean() - batch.tokens[~good].mean())
        return {name: value for name, value in found.items() if not np.isnan(value)}

    def outcomes(self, batch: FixedBatch, values: Array) -> tuple[str, Array]:
        """For each answer the share of answers of the other label that its reward is on the right side of; NaN where
        there are none. Their mean within each label is the accuracy."""
        good, reward = batch.desirable, self._rewards(batch, values)
        difference = (reward[:, None] - reward[None, :]) * np.where(good, 1.0, -1.0)[:, None]
        other = good[:, None] != good[None, :]
        with np.errstate(invalid="ignore"):
            return "accuracy", (_right(difference) * other).sum(1) / other.sum(1)

    def _rewards(self, batch: FixedBatch, values: Array) -> Array:
        scores = self._scores(batch, np.arange(len(batch)), torch.from_numpy(values))
        return answer_losses(scores, self.spec, 0.0, len(batch)).reward.numpy()

    def _scores(self, batch: FixedBatch, rows: Rows, values: torch.Tensor) -> AnswerScores:
        return AnswerScores(
            values,
            _at(batch.reference, rows, values),
            _at(batch.tokens, rows, values),
            _at(batch.desirable, rows, values),
        )


@dataclass(frozen=True, slots=True)
class SupervisedMethod:
    """Maximum likelihood."""

    spec: Supervised
    answers: int = 1
    scorer: RowScorer = summed_logprobs
    reference: bool = False

    def begin(self, batch: FixedBatch, kl: float) -> RowLoss:
        """Minus the log-probs over all tokens of the step, or the mean of the rows' token means."""
        weight = (
            np.full(len(batch), 1.0 / batch.tokens.sum())
            if self.spec.aggregation == "token_mean"
            else 1.0 / (batch.tokens * len(batch))
        )

        def loss(rows: Rows, values: torch.Tensor) -> torch.Tensor:
            return -(values * _at(weight, rows, values)).sum()

        return loss

    def measure(self, batch: FixedBatch, values: Array) -> Mapping[str, float]:
        """The negative log-likelihood per token."""
        return {"token_nll": float(-values.sum() / batch.tokens.sum())}

    def outcomes(self, batch: FixedBatch, values: Array) -> tuple[str, Array]:
        """The negative log-likelihood per token of each row."""
        return "token_nll", -values / batch.tokens


def pair_signals(batch: FixedBatch, chosen: Array, rejected: Array) -> dict[str, float]:
    """What rewards (P,) of both sides say, and what length has to do with them."""
    gap = batch.tokens[0::2] - batch.tokens[1::2]
    found = {
        "accuracy": pair_auc(chosen, rejected),
        "margin": float((chosen - rejected).mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
        "length_gap": float(gap.mean()),
        "length_auc": pair_auc(gap, np.zeros(len(gap))),
        "length_margin_correlation": correlation(gap, chosen - rejected),
    }
    return {name: value for name, value in found.items() if not np.isnan(value)}


def style_signals(batch: FixedBatch) -> dict[str, float]:
    """How well single numbers of the surface predict "chosen", by feature; length has a signal of its own."""
    if batch.answers < 2:
        return {}
    chosen, rejected = pair_features(batch.examples)
    return {
        f"style_auc/{name}": pair_auc(chosen[:, i], rejected[:, i])
        for i, name in enumerate(FEATURES)
        if name != "tokens"
    }


def _right(difference: Array) -> Array:
    return (difference > 0) + 0.5 * (difference == 0)


def _sides(rows: Rows) -> tuple[Rows, Rows]:
    """Where the chosen and the rejected answers are, pair by pair: rows are sorted, and no pair is split."""
    chosen, rejected = np.flatnonzero(rows % 2 == 0), np.flatnonzero(rows % 2 == 1)
    assert np.array_equal(rows[chosen] + 1, rows[rejected]), "a pair is split over micro-batches"
    return chosen, rejected


def _at(column: npt.NDArray[np.generic], rows: Rows | Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(column[rows]).to(like.device)

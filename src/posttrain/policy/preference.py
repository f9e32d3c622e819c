"""Losses on preference data: DPO and its relatives on pairs, KTO on labelled answers, Bradley-Terry on rewards.

Pure functions of log-probs: no model, no settings beyond one small table, no logging. All sums are in float64.

Legend: ``P`` pairs, ``N`` labelled answers, of one micro-batch. ``pairs`` and ``rows`` given as denominators count the
whole optimizer step, so that cutting it into micro-batches changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling


@dataclass(frozen=True, slots=True)
class PairScores:
    """Answers to the same prompts, all (P,).

    ``chosen`` and ``rejected`` are summed log-probs and have gradient; the reference's are constants, absent where the
    row has no reference. Tokens are counts of summed log-probs, at least 1.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    rejected_tokens: torch.Tensor
    reference_chosen: torch.Tensor | None = None
    reference_rejected: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Labelled answers, all (N,): ``logprob`` summed, with gradient; ``desirable`` bool; ``tokens`` at least 1."""

    logprob: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    desirable: torch.Tensor


@dataclass(frozen=True, slots=True)
class PairLosses:
    """``loss`` float64 scalar with gradient, its part of the step's mean; the others are detached float64 (P,).

    ``chosen_reward`` and ``rejected_reward`` are beta x score: the reward under which the policy would be optimal.
    """

    loss: torch.Tensor
    per_pair: torch.Tensor
    chosen_reward: torch.Tensor
    rejected_reward: torch.Tensor


@dataclass(frozen=True, slots=True)
class AnswerLosses:
    """As :class:`PairLosses`, for labelled answers (N,)."""

    loss: torch.Tensor
    per_answer: torch.Tensor
    reward: torch.Tensor


def pair_losses(scores: PairScores, spec: Preference, pairs: int) -> PairLosses:
    """The loss of pairs, divided by ``pairs`` of the whole step.

    With D = score chosen - score rejected and h = beta D - margin:

    - logistic (DPO, arXiv 2305.18290; SimPO, 2405.14734: token means, no reference, a margin): -log sigmoid(h)
    - conservative label noise e (cDPO): -(1-e) log sigmoid(h) - e log sigmoid(-h)
    - robust label noise e (2403.00409): [-(1-e) log sigmoid(h) + e log sigmoid(-h)] / (1-2e)
    - squared (IPO, 2310.12036): (D - 1/(2 beta))^2

    TRL's IPO takes token means; here as in the paper sums, unless ``spec.score`` says otherwise. TRL's robust loss is
    the same; its ``simpo_gamma`` lives in the CPO trainer. Raises ValueError where a reference is wanted and absent.
    """
    chosen = _score(scores.chosen, scores.reference_chosen, scores.chosen_tokens, spec)
    rejected = _score(scores.rejected, scores.reference_rejected, scores.rejected_tokens, spec)
    difference = chosen - rejected
    if spec.link == "squared":
        per_pair = (difference - 1.0 / (2.0 * spec.beta)) ** 2
    elif spec.link == "logistic":
        per_pair = _logistic(spec.beta * difference - spec.margin, spec)
    else:
        raise ValueError("link = 'kto' is a loss of labelled answers, see answer_losses")
    if spec.chosen_nll_weight:
        per_pair = per_pair - spec.chosen_nll_weight * scores.chosen.double() / scores.chosen_tokens
    detached = per_pair.detach()
    return PairLosses(per_pair.sum() / pairs, detached, spec.beta * chosen.detach(), spec.beta * rejected.detach())


def _score(
    logprob: torch.Tensor, reference: torch.Tensor | None, tokens: torch.Tensor, spec: Preference
) -> torch.Tensor:
    score = logprob.double()
    if spec.reference:
        if reference is None:
            raise ValueError("this loss compares with a reference, and no reference log-probs are given")
        score = score - reference.double()
    return score / tokens if spec.score == "token_mean" else score


def _logistic(h: torch.Tensor, spec: Preference) -> torch.Tensor:
    noise = spec.label_noise
    if noise == 0.0:
        return -logsigmoid(h)
    if spec.noise_correction == "conservative":
        return -(1.0 - noise) * logsigmoid(h) - noise * logsigmoid(-h)
    return (-(1.0 - noise) * logsigmoid(h) + noise * logsigmoid(-h)) / (1.0 - 2.0 * noise)


def answer_losses(scores: AnswerScores, spec: Preference, kl: float, rows: int) -> AnswerLosses:
    """KTO (arXiv 2402.01306), divided by ``rows`` of the whole step.

    With s = lp - reference: desirable w_D (1 - sigmoid(beta (s - z0))), undesirable w_U (1 - sigmoid(beta (z0 - s))).
    ``kl`` is z0 of the whole step (:func:`kto_kl`), a constant.
    """
    score = _score(scores.logprob, scores.reference, scores.tokens, spec)
    lean = spec.beta * (score - kl)
    # 1 - sigmoid(x) = sigmoid(-x), which keeps its precision where x is large.
    per_answer = torch.where(
        scores.desirable, spec.desirable_weight * torch.sigmoid(-lean), spec.undesirable_weight * torch.sigmoid(lean)
    )
    return AnswerLosses(per_answer.sum() / rows, per_answer.detach(), spec.beta * score.detach())


def kto_kl(logprob: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, spec: Preference) -> float:
    """z0 = max(0, mean of lp - reference) over answers put after prompts they do not belong to, all (N,).

    0 where there are none. TRL takes the mean over a micro-batch; here it is over the whole step.
    """
    if logprob.numel() == 0:
        return 0.0
    mean = float(_score(logprob.detach(), reference, tokens, spec).mean())
    return max(0.0, mean)


def bradley_terry_losses(
    chosen: torch.Tensor, rejected: torch.Tensor, margins: torch.Tensor, spec: RewardModelling, pairs: int
) -> PairLosses:
    """The loss of a reward model on pairs, divided by ``pairs`` of the whole step.

    -log sigmoid(r_c - r_r - margin) + c (r_c + r_r)^2. ``chosen`` and ``rejected`` (P,) are rewards and have gradient;
    ``margins`` (P,) says how much better the chosen answer is, 0 where nobody said.
    """
    r_chosen, r_rejected = chosen.double(), rejected.double()
    per_pair = -logsigmoid(r_chosen - r_rejected - margins.double())
    if spec.center_weight:
        per_pair = per_pair + spec.center_weight * (r_chosen + r_rejected) ** 2
    return PairLosses(per_pair.sum() / pairs, per_pair.detach(), r_chosen.detach(), r_rejected.detach())

"""Losses on preference data, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting


class Preference(Section):
    """``[policy.preference]``: from log-probs of answers to a loss.

    The score of an answer is its log-prob, minus the reference's where there is one. A pair's difference is the
    chosen answer's score minus the rejected answer's.
    """

    link: Literal["logistic", "squared", "kto"] = setting(
        "logistic",
        "`logistic`: -log sigmoid(beta difference - margin). `squared`: (difference - 1/(2 beta))^2. `kto`: single "
        "answers, each labelled desirable or not.",
        reason="DPO's; the others answer its overfitting (squared) and its need for pairs (kto)",
    )
    beta: float = setting(
        0.1,
        "How much a difference counts; the weight of the KL to the reference that the loss stands for.",
        reason="DPO's usual value; 0.01 lets the policy move further, 0.5 keeps it close",
        assumes="scores that are sums over tokens; with averages beta is 2 to 10",
        gt=0.0,
    )
    score: Literal["sum", "token_mean"] = setting(
        "sum",
        "An answer's log-prob: the sum over its tokens, or their mean.",
        reason="the sum is the log-prob of the answer; the mean changes the meaning of beta by the length",
    )
    reference: bool = setting(
        True,
        "Subtract the log-probs of the initial weights.",
        reason="the term that keeps the policy near where it started; SimPO goes without",
    )
    margin: float = setting(
        0.0,
        "What `beta difference` should exceed (SimPO's gamma). Of the logistic link only.",
        reason="DPO has none; SimPO takes about half of beta",
        ge=0.0,
    )
    label_noise: float = setting(
        0.0,
        "Assumed share of pairs whose labels are swapped. Of the logistic link only.",
        reason="0 trusts every label",
        ge=0.0,
        lt=0.5,
    )
    noise_correction: Literal["conservative", "robust"] = setting(
        "conservative",
        "What `label_noise` does: `conservative` smooths the labels, `robust` makes the loss unbiased under the noise.",
        reason="bounded below; the robust loss is not",
    )
    chosen_nll_weight: float = setting(
        0.0,
        "Weight of minus the chosen answer's mean token log-prob, added to each pair's loss.",
        reason="the papers' losses have none; 1 keeps the chosen answer's log-prob from falling",
        ge=0.0,
    )
    desirable_weight: float = setting(
        1.0, "Weight of desirable answers (kto).", reason="TRL's; balance it against unequal counts", gt=0.0
    )
    undesirable_weight: float = setting(1.0, "Weight of undesirable answers (kto).", reason="as above", gt=0.0)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.link != "logistic" and (self.label_noise or self.margin):
            name = "label_noise" if self.label_noise else "margin"
            raise ValueError(f"{name} belongs to link = 'logistic', and link = {self.link!r} is chosen")
        if self.link == "kto" and not self.reference:
            raise ValueError("link = 'kto' compares with a reference, so it needs reference = true")
        if self.link == "kto" and self.chosen_nll_weight:
            raise ValueError("chosen_nll_weight is for pairs, and link = 'kto' has none")
        return self

    @property
    def pairs(self) -> bool:
        """True if rows are pairs, false if they are single labelled answers."""
        return self.link != "kto"

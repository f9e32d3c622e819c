"""Anchors to a reference policy, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting


class Anchor(Section):
    """``[policy.anchor]``: a pull towards a reference policy. ``x = log pi - log reference``."""

    weight: float = setting(
        0.0,
        "Weight of the KL term; 0 needs no reference model.",
        reason="off for verifiable rewards, as in DAPO, Dr.GRPO and the defaults of TRL and verl",
        assumes="verifiable rewards; a soft reward wants one",
        ge=0.0,
    )
    place: Literal["loss", "reward"] = setting(
        "loss",
        "`loss`: added to each token's loss; `reward`: the sequence's sum is subtracted from its reward.",
        reason="the place of the original GRPO",
    )
    estimator: Literal["k1", "k2", "k3", "k3_corrected"] = setting(
        "k3",
        "k1 = x, k2 = x^2/2, k3 = exp(-x) - 1 + x, k3_corrected = ratio k3 with gradient through the ratio.",
        reason="original GRPO's; its gradient is that of the forward KL, k2 and k3_corrected have the reverse KL's",
    )

    @model_validator(mode="after")
    def _reward_estimators(self) -> Self:
        if self.place == "reward" and self.estimator in ("k2", "k3_corrected"):
            raise ValueError(f"estimator = {self.estimator!r} works by its own gradient, so its place is 'loss'")
        return self

    @property
    def biased_pair(self) -> Literal["k1_in_loss", "k3_in_reward"] | None:
        """The pair of estimator and place, if it misses the gradient of KL(policy || reference) altogether.

        k1 in the loss has expected gradient 0; k3 in the reward gives the difference of the reverse and the forward
        KL's gradients, almost nothing near the reference. k3 in the loss is not named: it has the forward KL's
        gradient, equal to second order near the reference.
        """
        if self.place == "loss" and self.estimator == "k1":
            return "k1_in_loss"
        if self.place == "reward" and self.estimator == "k3":
            return "k3_in_reward"
        return None

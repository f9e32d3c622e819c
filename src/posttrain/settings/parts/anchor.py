"""Anchors to a reference policy, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting

BiasedPair = Literal["k1_in_loss", "k3_in_reward"]


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
    estimator: Literal["k1", "k2", "k3", "k3_corrected", "full_vocabulary"] = setting(
        "k3",
        "k1 = x, k2 = x^2/2, k3 = exp(-x) - 1 + x, k3_corrected = ratio k3 with gradient through the ratio; "
        "full_vocabulary = sum_v pi_v log(pi_v / reference_v), exact at each prefix.",
        reason="original GRPO's; its gradient is that of the forward KL, k2, k3_corrected and full_vocabulary have the "
        "reverse KL's",
    )
    reference: str = setting(
        "initial",
        "`initial`: the weights the run starts from (under LoRA the base model, without a copy); `ema`: a moving "
        "average of the policy; else a model as in `model.path`, of the same tokenizer.",
        reason="the policy that was good before the run",
        min_length=1,
    )
    ema_rate: float = setting(
        0.6,
        "For `ema`: the policy's share at each mixing, reference <- rate x policy + (1 - rate) x reference.",
        reason="TRL's ref_model_mixup_alpha",
        gt=0.0,
        le=1.0,
    )
    ema_every: int = setting(512, "For `ema`: batches between mixings.", reason="TRL's ref_model_sync_steps", ge=1)
    reset_every: int = setting(
        0,
        "For `initial`: the reference becomes the policy after every so many batches; 0: never.",
        reason="a fixed reference is what the KL to it means; 400 in DeepSeek-R1's report",
        ge=0,
    )
    reset_on_stagnation: int = setting(
        0,
        "For `initial`: the reference becomes the policy after so many evaluations in a row without a new best mean "
        "held-out reward; 0: never.",
        reason="as `reset_every`; ProRL resets when validation stagnates",
        ge=0,
    )
    target_kl: float | None = setting(
        None,
        "Divergence in nats per token at which the weight stays: above 1.5 times it every anchor weight doubles for "
        "the next batch, below 1/1.5 of it they halve. Absent: the weight is fixed.",
        reason="a fixed weight is comparable between runs",
        gt=0.0,
    )
    gradient_every: int = setting(
        0,
        "Batches between measurements of the anchor's gradient against the rest's, by a second backward pass of one "
        "micro-batch; 0: never.",
        reason="it costs that pass and two gradients of memory; 10 is enough to see an anchor that blocks or idles",
        ge=0,
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.place == "reward" and self.estimator in ("k2", "k3_corrected", "full_vocabulary"):
            raise ValueError(f"estimator = {self.estimator!r} works by its own gradient, so its place is 'loss'")
        if self.reference != "initial" and (self.reset_every or self.reset_on_stagnation):
            name = "reset_every" if self.reset_every else "reset_on_stagnation"
            raise ValueError(f"{name} replaces the initial weights, and reference = {self.reference!r} is not those")
        return self

    @property
    def from_path(self) -> bool:
        """True if the reference is a model of its own."""
        return self.reference not in ("initial", "ema")

    @property
    def sampled(self) -> bool:
        """True if the term needs the reference's log-probs of the sampled tokens alone."""
        return self.estimator != "full_vocabulary"

    @property
    def biased_pair(self) -> BiasedPair | None:
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

"""The parts an algorithm is made of, as data.

``objective = advantage x ratio x trust region x anchor x aggregation``, preceded by what happens to
rewards (overlong) and groups (filter). Each part is a small table that can be written under
``[policy.PART]``; the function that computes it lives in ``posttrain.policy``. Only the fields written
there replace the row's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting

LOG_RATIO_CLAMP = 20.0
"""Bound on |log ratio| before ``exp``: e^20 is finite in every dtype used; a clamped token has no gradient."""


class Need(StrEnum):
    """What a row cannot run without."""

    GROUP = "group size of at least 2"
    PROXIMAL_LOGPROBS = "trainer log-probs before the update"
    SAMPLER_LOGPROBS = "sampler log-probs"
    REFERENCE = "reference model"
    SINGLE_UPDATE = "one update per batch"
    SUCCESS = "success threshold of the environment"
    GENERATION_BUDGET = "generation budget (rollout.max_new_tokens)"


class Distribution(StrEnum):
    """Which distribution a row's data comes from."""

    FIXED = "fixed data"
    POLICY_INDUCED = "sampled by the policy being trained"
    STALE_POLICY = "sampled by an earlier version of the policy"


class Advantage(Section):
    """``[policy.advantage]``: from rewards to what multiplies each token."""

    baseline: Literal["none", "group_mean", "leave_one_out"] = setting(
        "group_mean",
        "What is subtracted from a reward: nothing, the mean of its group, or the mean of the group's other members.",
        reason="a group baseline needs no critic; leave_one_out is group_mean times G/(G-1) and unbiased",
        assumes="several attempts per task",
    )
    scale: Literal["none", "group_std", "batch_std"] = setting(
        "none",
        "What the centred reward is divided by: nothing, the std of its group, or the std of the centred rewards "
        "of the whole batch (groups without spread included).",
        reason="the group std weighs nearly solved and nearly failed tasks up; rows that divide by it say so",
    )
    std_ddof: Literal[0, 1] = setting(
        1,
        "Delta degrees of freedom of the std: 1 divides by n - 1, 0 by n.",
        reason="TRL and verl use 1; with small groups the choice changes the step size by sqrt(n/(n-1))",
    )
    std_epsilon: float = setting(
        1e-6,
        "Added to the std before dividing.",
        reason="verl's value (TRL: 1e-4); it never decides about equal rewards, those are compared exactly",
        ge=0.0,
    )

    @model_validator(mode="after")
    def _scale_needs_baseline(self) -> Self:
        if self.baseline == "none" and self.scale != "none":
            raise ValueError(f"scale = {self.scale!r} divides centred rewards, so it needs a baseline")
        return self


class Ratio(Section):
    """``[policy.ratio]``: how much more likely the policy makes a token than the policy it is compared with."""

    level: Literal["none", "token"] = setting(
        "token",
        "`none`: the score-function surrogate -A log pi; `token`: exp(log pi - log denominator) per token.",
        reason="a ratio keeps the surrogate right when a batch is used for several updates",
    )
    denominator: Literal["proximal", "sampler"] = setting(
        "proximal",
        "`proximal`: the trainer's own log-probs before the batch's first update; `sampler`: the engine's. With "
        "`sampler` the ratio also corrects the sampler/trainer mismatch and nothing else may correct it again.",
        reason="the clip then measures only what the optimizer did, not numerical noise of the engine",
        assumes="synchronous: sampler and trainer hold the same weights",
    )


class TrustRegion(Section):
    """``[policy.trust_region]``: how far the policy may move on one batch."""

    kind: Literal["none", "clip"] = setting(
        "clip",
        "`clip`: no gradient once A > 0 and ratio > 1 + clip_high, or A < 0 and ratio < 1 - clip_low.",
        reason="PPO's one-sided clip, the field's default",
    )
    clip_low: float = setting(
        0.2,
        "How far below 1 the ratio may fall where the advantage is negative.",
        reason="0.2 in TRL, verl, OpenRLHF and NeMo-RL",
        ge=0.0,
        le=1.0,
    )
    clip_high: float = setting(
        0.2,
        "How far above 1 the ratio may rise where the advantage is positive.",
        reason="symmetric with clip_low; DAPO raises it to 0.28 so that rare tokens can grow",
        ge=0.0,
    )
    dual_clip: float | None = setting(
        None,
        "Bound c > 1 on the ratio where the advantage is negative: the loss there is at most -c A. Absent: none.",
        reason="off, as in the papers of these rows (verl's default is 3); with one update per batch it never acts",
        gt=1.0,
    )


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


class Aggregation(Section):
    """``[policy.aggregation]``: from token losses to one number, with denominators of the whole step."""

    kind: Literal["token_mean", "sequence_mean", "sequence_sum", "constant_length", "prompt_average"] = setting(
        "token_mean",
        "`token_mean`: sum / trained tokens. `sequence_mean`: mean over sequences of their token means. "
        "`sequence_sum`: mean over sequences of their token sums. `constant_length`: the same / `length`. "
        "`prompt_average`: mean over groups of (sum over the group / its tokens).",
        reason="every token counts alike; the default of verl, TRL, prime-rl and OpenRLHF",
    )
    length: int | None = setting(
        None,
        "The constant of `constant_length`, in tokens. Absent: the generation budget.",
        reason="a constant of the run, never the longest row of a batch: the loss scale must not depend on a batch",
        ge=1,
    )


class Overlong(Section):
    """``[policy.overlong]``: what happens to attempts near or at the generation budget L."""

    soft_penalty: bool = setting(
        False,
        "Add to the reward 0 up to L - buffer, then linearly down to -penalty_weight at L.",
        reason="a reward term of its own; only DAPO has it",
    )
    buffer_tokens: int | None = setting(
        None,
        "Length of the slope before L. Absent: a fifth of L, as in the paper (4096 of 20480).",
        reason="the paper's proportion carries over to other budgets, its number does not",
        ge=1,
    )
    penalty_weight: float = setting(1.0, "Penalty at L.", reason="the paper's; rewards there are +1 and -1", gt=0.0)
    filter: Literal["off", "loss", "loss_and_baseline"] = setting(
        "off",
        "Attempts cut at the budget: trained as they are; masked from the loss; or masked and also left out of their "
        "group's baseline.",
        reason="a variant in the paper that its best reported run did not use; masking hides a growing length",
    )


class GroupFilter(Section):
    """``[policy.group_filter]``: which groups are worth training (dynamic sampling)."""

    rule: Literal["none", "mixed_success"] = setting(
        "none",
        "`mixed_success`: keep a group only if some of its attempts succeed and some fail, judged by the success "
        "threshold and never by the shaped reward. A group is kept or dropped whole.",
        reason="costs extra rollouts; without shaping terms equal rewards already give advantage 0",
    )
    max_refills: int = setting(
        0,
        "How many more times groups are drawn to replace dropped ones; then the step runs with those there are.",
        reason="0 drops without replacement; a cap keeps a step from sampling for ever when nothing is mixed",
        ge=0,
    )


class ObjectiveSpec(Section):
    """All parts of one algorithm."""

    advantage: Advantage = Advantage()
    ratio: Ratio = Ratio()
    trust_region: TrustRegion = TrustRegion()
    anchor: Anchor = Anchor()
    aggregation: Aggregation = Aggregation()
    overlong: Overlong = Overlong()
    group_filter: GroupFilter = GroupFilter()

    @model_validator(mode="after")
    def _clip_needs_ratio(self) -> Self:
        if self.ratio.level == "none" and self.trust_region.kind != "none":
            raise ValueError("trust_region.kind = 'clip' bounds a ratio, so it needs ratio.level = 'token'")
        return self

    def override(self, **parts: Section | None) -> ObjectiveSpec:
        """A copy in which the fields explicitly set in ``parts`` replace this spec's.

        ``parts`` maps part names to part tables; ``None`` and fields left unset change nothing. Raises
        pydantic's ValidationError if the combination contradicts itself.
        """
        merged: dict[str, Any] = self.model_dump()
        for name, part in parts.items():
            if name not in merged:
                raise KeyError(f"{name} is not a part of an objective; parts: {', '.join(merged)}")
            if part is not None:
                merged[name].update(part.model_dump(exclude_unset=True))
        return ObjectiveSpec.model_validate(merged)

    def for_generation_budget(self, max_new_tokens: int) -> ObjectiveSpec:
        """A copy with the two lengths that default to the generation budget filled in."""
        aggregation, overlong = self.aggregation, self.overlong
        if aggregation.kind == "constant_length" and aggregation.length is None:
            aggregation = aggregation.model_copy(update={"length": max_new_tokens})
        if overlong.soft_penalty and overlong.buffer_tokens is None:
            overlong = overlong.model_copy(update={"buffer_tokens": max(1, max_new_tokens // 5)})
        return self.model_copy(update={"aggregation": aggregation, "overlong": overlong})

    @property
    def needs(self) -> tuple[Need, ...]:
        """What this spec cannot run without; follows from its parts, so overrides are reflected."""
        wanted = {
            Need.GROUP: self.advantage.baseline != "none" or self.group_filter.rule != "none",
            Need.SINGLE_UPDATE: self.ratio.level == "none",
            Need.PROXIMAL_LOGPROBS: (self.ratio.level != "none" and self.ratio.denominator == "proximal")
            or (self.anchor.weight > 0 and self.anchor.place == "reward"),
            Need.SAMPLER_LOGPROBS: self.ratio.level != "none" and self.ratio.denominator == "sampler",
            Need.REFERENCE: self.anchor.weight > 0,
            Need.SUCCESS: self.group_filter.rule != "none",
            Need.GENERATION_BUDGET: self.aggregation.kind == "constant_length" or self.overlong.soft_penalty,
        }
        return tuple(need for need, is_wanted in wanted.items() if is_wanted)

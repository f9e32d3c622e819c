"""The parts an algorithm is made of, as data.

``objective = advantage x ratio x trust region x correction x anchor x aggregation``, preceded by what
happens to rewards (overlong) and groups (filter). Each part is a small table that can be written under
``[policy.PART]``, declared in ``settings.parts``; the function that computes it lives in
``posttrain.policy``. Only the fields written there replace the row's.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from posttrain.settings.field import Section
from posttrain.settings.parts.advantage import Advantage
from posttrain.settings.parts.aggregation import Aggregation
from posttrain.settings.parts.anchor import Anchor
from posttrain.settings.parts.correction import Correction
from posttrain.settings.parts.critic import Critic
from posttrain.settings.parts.distillation import Distillation
from posttrain.settings.parts.fit import check_fit
from posttrain.settings.parts.group_filter import GroupFilter
from posttrain.settings.parts.needs import Distribution, Need
from posttrain.settings.parts.overlong import Overlong
from posttrain.settings.parts.ratio import LOG_RATIO_CLAMP, Ratio
from posttrain.settings.parts.trust_region import TrustRegion

__all__ = [
    "LOG_RATIO_CLAMP",
    "Advantage",
    "Aggregation",
    "Anchor",
    "Correction",
    "Critic",
    "Distillation",
    "Distribution",
    "GroupFilter",
    "Need",
    "ObjectiveSpec",
    "Overlong",
    "Ratio",
    "TrustRegion",
]


class ObjectiveSpec(Section):
    """All parts of one algorithm."""

    advantage: Advantage = Advantage()
    critic: Critic = Critic()
    ratio: Ratio = Ratio()
    trust_region: TrustRegion = TrustRegion()
    correction: Correction = Correction()
    anchor: Anchor = Anchor()
    aggregation: Aggregation = Aggregation()
    overlong: Overlong = Overlong()
    group_filter: GroupFilter = GroupFilter()
    distillation: Distillation = Distillation()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_fit(self)
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
        ratio, advantage = self.ratio, self.advantage
        wanted = {
            Need.GROUP: advantage.compares_attempts or self.group_filter.rule != "none",
            Need.GREEDY_ATTEMPT: advantage.baseline == "greedy",
            Need.CRITIC: advantage.baseline == "critic",
            Need.REWARD_PARTS: advantage.combine == "parts",
            Need.NON_NEGATIVE_REWARDS: advantage.scale == "group_reward_mean",
            Need.SINGLE_UPDATE: ratio.level == "none",
            Need.PROXIMAL_LOGPROBS: (ratio.level != "none" and ratio.denominator == "proximal")
            or self.correction.reads_proximal
            or (self.anchor.weight > 0 and self.anchor.place == "reward"),
            Need.SAMPLER_LOGPROBS: (ratio.level != "none" and ratio.denominator == "sampler")
            or self.correction.reads_sampler,
            Need.REFERENCE: self.anchor.weight > 0,
            Need.TEACHER: self.distillation.weight > 0,
            Need.SUCCESS: self.group_filter.rule != "none" or advantage.baseline == "pass_at_k",
            Need.GENERATION_BUDGET: self.aggregation.kind == "constant_length" or self.overlong.soft_penalty,
        }
        return tuple(need for need, is_wanted in wanted.items() if is_wanted)

"""What a row of the algorithm table holds, and pitfalls several rows share.

Legend of the formulas: ``A`` advantage, ``lp`` log-prob of the policy (has gradient), ``r = exp(lp - old)``,
``R`` reward, ``G`` group size, ``m`` 1 where a token is trained, ``L`` generation budget. Denominators are
counts over the whole optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.settings.objective import Advantage, Distribution, Need, ObjectiveSpec


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A value that unmakes a row: ``part.field = value`` and why."""

    part: str
    field: str
    value: object
    reason: str


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One algorithm: its parts, and the facts a user needs to choose it.

    ``differences`` pairs another framework's setting with how this row differs from it; ``forbidden`` values would make
    it another algorithm under this name.
    """

    name: str
    title: str
    spec: ObjectiveSpec
    formula: tuple[str, ...]
    source: str
    distribution: Distribution
    assumes: str
    addresses: str
    pitfalls: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    forbidden: tuple[Forbidden, ...] = ()

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the row cannot run without, before overrides."""
        return self.spec.needs


CLIP_PITFALL = (
    "The clip is one-sided per sign: where A < 0 and the ratio is large the loss is not bounded. Watch "
    "policy/ratio_max, or set trust_region.dual_clip, when a batch is used for more than one update."
)
STD_PITFALL = (
    "Dividing by the group std blows any spread up to full size: in a group without a success the only spread may "
    "be a shaping term (length, format). Set group_filter.rule = 'mixed_success', or pay shaping only on success."
)
UNIFORM_PITFALL = "Groups whose rewards are all equal give advantage exactly 0: watch reward/zero_variance_groups."
MASK_PITFALL = "A mask leaves tokens without any gradient for good: watch policy/region_masked_share over the run."
SAMPLER_PITFALL = (
    "The ratio compares with the sampler's log-probs: engine noise and stale weights are in it, so trainer log-probs "
    "before the update are not needed, and no correction may be applied on top."
)

GROUP_STD = Advantage(baseline="group_mean", scale="group_std", std_ddof=1, std_epsilon=1e-6)
"""GRPO's advantage, with the conventions of verl."""
CENTRED = Advantage(baseline="group_mean", scale="none")
"""Dr.GRPO's advantage."""

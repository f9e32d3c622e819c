"""Algorithms as rows of a table: which parts, and what to know before choosing one.

Legend of the formulas: ``A`` advantage, ``lp`` log-prob of the policy (has gradient), ``r = exp(lp - old)``,
``R`` reward, ``G`` group size, ``m`` 1 where a token is trained, ``L`` generation budget. Denominators are
counts over the whole optimizer step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from posttrain.errors import InputError
from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    GroupFilter,
    Need,
    ObjectiveSpec,
    Overlong,
    Ratio,
    TrustRegion,
)


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One algorithm: its parts, and the facts a user needs to choose it.

    ``differences`` pairs another framework's setting with how this row differs from it.
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

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the row cannot run without, before overrides."""
        return self.spec.needs


_CLIP_PITFALL = (
    "The clip is one-sided per sign: where A < 0 and the ratio is large the loss is not bounded. Watch "
    "policy/ratio_max, or set trust_region.dual_clip, when a batch is used for more than one update."
)
_STD_PITFALL = (
    "Dividing by the group std blows any spread up to full size: in a group without a success the only spread may "
    "be a shaping term (length, format). Set group_filter.rule = 'mixed_success', or pay shaping only on success."
)
_UNIFORM_PITFALL = "Groups whose rewards are all equal give advantage exactly 0: watch reward/zero_variance_groups."

_REINFORCE = AlgorithmRow(
    name="reinforce",
    title="REINFORCE without a baseline",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="none"),
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="sequence_sum"),
    ),
    formula=("A_i = R_i", "loss = -(1/S) sum_i A_i sum_t m_it lp_it"),
    source="Williams 1992",
    distribution=Distribution.POLICY_INDUCED,
    assumes="rewards centred by design, such as +1 and -1; on-policy data; works with one attempt per task",
    addresses="the plain policy gradient, as the measure of what a baseline buys",
    pitfalls=(
        "Variance grows with the square of the mean reward: with rewards of 0 and 1 only successes push.",
        "No ratio: a second update on the same batch is wrong, so one update per batch is required.",
        "Constant rewards are not a zero-variance case here: every sample is pushed alike.",
    ),
    differences=(("verl reinforce++", "that row discounts token rewards and whitens over the batch; this does not"),),
)

_REINFORCE_LOO = AlgorithmRow(
    name="reinforce_loo",
    title="REINFORCE with a leave-one-out baseline (RLOO)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="leave_one_out"),
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="sequence_sum"),
    ),
    formula=(
        "A_i = R_i - (1/(G-1)) sum_{j != i} R_j = G/(G-1) (R_i - mean R)",
        "loss = -(1/S) sum_i A_i sum_t m_it lp_it",
    ),
    source="arXiv 2402.14740 (Ahmadian et al. 2024); Kool et al. 2019",
    distribution=Distribution.POLICY_INDUCED,
    assumes="on-policy data, sequence-level rewards, groups of 2 or more",
    addresses="variance, without a critic and without the bias of a baseline that contains the sample itself",
    pitfalls=(
        "The sequence is one action: the gradient grows with length, so the learning rate depends on it.",
        "No ratio: a second update on the same batch is wrong, so one update per batch is required.",
        _UNIFORM_PITFALL,
    ),
    differences=(
        (
            "the paper",
            "it subtracts a k1 KL (0.03 to 0.10) from the reward; here anchor.weight is 0 and "
            "anchor.place = 'reward', anchor.estimator = 'k1' give it",
        ),
        (
            "TRL RLOOTrainer",
            "clips a sequence ratio and may normalise advantages over the batch; this row does neither",
        ),
        ("verl rloo", "the same advantage, but under PPO's clipped token loss and with token_mean by default"),
    ),
)

_GRPO = AlgorithmRow(
    name="grpo",
    title="GRPO (original form)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="group_std", std_ddof=1, std_epsilon=1e-6),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="sequence_mean"),
    ),
    formula=(
        "A_i = (R_i - mean R) / (std R + eps)",
        "loss = (1/S) sum_i (1/|y_i|) sum_t m_it [ max(-A r, -A clip(r, 1-low, 1+high)) + weight k3_it ]",
        "k3 = exp(-x) - 1 + x,  x = lp - log reference",
    ),
    source="arXiv 2402.03300 (DeepSeekMath)",
    distribution=Distribution.POLICY_INDUCED,
    assumes="verifiable rewards, so no anchor; group size 8 or more; synchronous",
    addresses="the cost of a critic: the group is the baseline",
    pitfalls=(
        "1/|y_i| makes each token of a long wrong answer count less: lengths of wrong answers may grow.",
        "The std weighs nearly solved and nearly failed tasks up.",
        _STD_PITFALL,
        _UNIFORM_PITFALL,
        "With an anchor, groups without spread still get the KL gradient.",
        _CLIP_PITFALL,
    ),
    differences=(
        ("the paper", "anchor.weight 0.04 with k3 in the loss; here 0. It states neither clip nor std convention"),
        (
            "TRL GRPOTrainer",
            "loss_type defaults to a token mean ('dapo') and the std epsilon is 1e-4; "
            "loss_type='grpo' with epsilon 1e-4 is this row",
        ),
        (
            "verl grpo",
            "the same advantage (ddof 1, epsilon 1e-6); aggregates by token_mean and has dual clip 3 by default",
        ),
        ("prime-rl", "centres without std and masks by probability difference: another objective"),
    ),
)

_DR_GRPO = AlgorithmRow(
    name="dr_grpo",
    title="Dr.GRPO (GRPO done right)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="none"),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="constant_length"),
    ),
    formula=(
        "A_i = R_i - mean R",
        "loss = (1/(S L)) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2503.20783",
    distribution=Distribution.POLICY_INDUCED,
    assumes="verifiable rewards; a generation budget that stays fixed over the run",
    addresses="length bias (1/|y|) and difficulty bias (1/std) of GRPO",
    pitfalls=(
        "The loss scale is about mean length / L: a budget far above real lengths shrinks the step, and the learning "
        "rate may need raising.",
        "Changing the budget in a run changes the step size; set aggregation.length to keep it.",
        _UNIFORM_PITFALL,
        _CLIP_PITFALL,
    ),
    differences=(
        ("TRL loss_type='dr_grpo'", "divides by max_completion_length; scale_rewards must be 'none' there as well"),
        ("verl seq-mean-token-sum-norm", "divides by the padded width of the batch unless a constant is set"),
        ("reinforce_loo", "the advantage differs only by the factor G/(G-1)"),
    ),
)

_DAPO = AlgorithmRow(
    name="dapo",
    title="DAPO (clip-higher, token mean, dynamic sampling, soft overlong)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="group_std", std_ddof=1, std_epsilon=1e-6),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.28),
        aggregation=Aggregation(kind="token_mean"),
        overlong=Overlong(soft_penalty=True),
        group_filter=GroupFilter(rule="mixed_success", max_refills=10),
    ),
    formula=(
        "R_i' = R_i + overlong(|y_i|);  keep a group iff 0 < successes < G",
        "A_i = (R_i' - mean R') / (std R' + eps)",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-0.2, 1+0.28)),  N = trained tokens of the step",
        "overlong(n) = 0 for n <= L-C;  ((L-C) - n)/C for L-C < n <= L;  -1 beyond",
    ),
    source="arXiv 2503.14476",
    distribution=Distribution.POLICY_INDUCED,
    assumes="verifiable rewards of +1 and -1, long answers, several updates per batch (16 in the paper), groups of 16",
    addresses="entropy collapse (clip-higher), groups without signal (dynamic sampling), truncation noise (overlong)",
    pitfalls=(
        "Dynamic sampling costs rollouts and shifts the task mix to medium difficulty; max_refills caps it.",
        "The filter judges success, not the shaped reward: an all-correct group with different lengths is dropped.",
        "The overlong term goes through the group std, so near the budget it can outweigh correctness.",
        "With one update per batch the ratio is 1 and clip-higher never acts.",
        _CLIP_PITFALL,
    ),
    differences=(
        (
            "the paper's formula",
            "it averages per prompt inside an expectation: aggregation.kind = 'prompt_average'; "
            "its released code, like this row, takes the mean over the batch's tokens",
        ),
        ("the paper's variant", "overlong.filter = 'loss' masks truncated attempts; the best reported run did not"),
        ("TRL loss_type='dapo'", "the loss alone: no dynamic sampling, epsilon_high must be set, std epsilon 1e-4"),
        (
            "verl dapo recipe",
            "refills up to max_num_gen_batches (10) and stops the run at the cap; here the step runs "
            "with the groups there are. Its overlong penalty continues below -1 beyond L, which sampling cannot reach",
        ),
    ),
)

ROWS: Mapping[str, AlgorithmRow] = MappingProxyType(
    {row.name: row for row in (_REINFORCE, _REINFORCE_LOO, _GRPO, _DR_GRPO, _DAPO)}
)
"""Every algorithm by name."""


def algorithm_row(name: str) -> AlgorithmRow:
    """The row of that name. Raises InputError naming the nearest one."""
    if name in ROWS:
        return ROWS[name]
    near = difflib.get_close_matches(name, list(ROWS), n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise InputError("policy.algorithm", name, "no such algorithm", f"{hint}Known: {', '.join(ROWS)}")

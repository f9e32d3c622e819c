"""GRPO and Dr.GRPO: the group as baseline."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    ObjectiveSpec,
    TrustRegion,
)
from posttrain.settings.rows.row import CLIP_PITFALL, STD_PITFALL, UNIFORM_PITFALL, AlgorithmRow

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
        STD_PITFALL,
        UNIFORM_PITFALL,
        "With an anchor, groups without spread still get the KL gradient.",
        CLIP_PITFALL,
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
        UNIFORM_PITFALL,
        CLIP_PITFALL,
    ),
    differences=(
        ("TRL loss_type='dr_grpo'", "divides by max_completion_length; scale_rewards must be 'none' there as well"),
        ("verl seq-mean-token-sum-norm", "divides by the padded width of the batch unless a constant is set"),
        ("reinforce_loo", "the advantage differs only by the factor G/(G-1)"),
    ),
)

ROWS = (
    _GRPO,
    _DR_GRPO,
)

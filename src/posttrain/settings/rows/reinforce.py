"""The score-function gradient with simple baselines."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import UNIFORM_PITFALL, AlgorithmRow

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
        UNIFORM_PITFALL,
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

ROWS = (
    _REINFORCE,
    _REINFORCE_LOO,
)

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
from posttrain.settings.rows.row import CLIP_PITFALL, UNIFORM_PITFALL, AlgorithmRow

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

_REMAX = AlgorithmRow(
    name="remax",
    title="ReMax (greedy attempt as baseline)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="greedy"),
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="sequence_sum"),
    ),
    formula=("A_i = R_i - R(greedy attempt at the same task)", "loss = -(1/S) sum_i A_i sum_t m_it lp_it"),
    source="arXiv 2310.10505",
    distribution=Distribution.POLICY_INDUCED,
    assumes="on-policy data; works with one sampled attempt per task; a greedy attempt that costs as much as another",
    addresses="the cost of a critic, with a baseline that needs no group",
    pitfalls=(
        "Where the greedy attempt is right, every wrong sample gets -1 and every right one 0: nothing is reinforced.",
        "The greedy attempt must come from the same weights as the samples.",
        "One more attempt per task: with a group of G the rollout costs (G + 1)/G.",
        "No ratio: a second update on the same batch is wrong, so one update per batch is required.",
    ),
    differences=(("verl remax", "the same advantage, under PPO's clipped token loss and with token_mean by default"),),
)

_REINFORCE_PP = AlgorithmRow(
    name="reinforce_pp",
    title="REINFORCE++ (advantages whitened over the batch's tokens)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="none", scale="token_whiten", std_ddof=1, std_epsilon=1e-8),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "A_it = (R_i - mean) / sqrt(var + eps),  mean and var (n - 1) over the trained tokens of the batch",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2501.03262",
    distribution=Distribution.POLICY_INDUCED,
    assumes="large batches: the batch is the baseline; works with one attempt per task",
    addresses="noisy and biased per-task stds of small groups",
    pitfalls=(
        "Whitening counts tokens, so long attempts dominate the mean.",
        "An easy task gets positive advantages throughout and a hard one negative: the batch's mix is the baseline.",
        CLIP_PITFALL,
    ),
    differences=(
        (
            "the paper",
            "it takes beta k1 (0.001) from each token's reward; anchor.place = 'reward', anchor.estimator = 'k1' take "
            "the sequence's sum instead, and anchor.weight is 0 here",
        ),
        ("verl reinforce_plus_plus", "the same whitening (epsilon 1e-8 under the root); gamma 1 as here"),
    ),
)

_REINFORCE_PP_BASELINE = AlgorithmRow(
    name="reinforce_pp_baseline",
    title="REINFORCE++ with a group mean",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="token_whiten", std_ddof=1, std_epsilon=1e-8),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "a_i = R_i - mean R;  A_it = (a_i - mean) / sqrt(var + eps) over the trained tokens of the batch",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2501.03262",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several attempts per task; large batches",
    addresses="task difficulty as in GRPO, without its per-task std",
    pitfalls=(
        "After whitening, attempts of a group without spread get a small advantage if length goes with reward.",
        CLIP_PITFALL,
    ),
    differences=(
        ("the paper", "it anchors by k2 in the loss; here anchor.weight is 0"),
        ("verl reinforce_plus_plus_baseline", "the same advantage, epsilon 1e-8 under the root"),
    ),
)

ROWS = (_REINFORCE, _REINFORCE_LOO, _REMAX, _REINFORCE_PP, _REINFORCE_PP_BASELINE)

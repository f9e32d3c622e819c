"""Other advantages from the same group."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    CENTRED,
    CLIP_PITFALL,
    STD_PITFALL,
    UNIFORM_PITFALL,
    AlgorithmRow,
)

_MAXRL = AlgorithmRow(
    name="maxrl",
    title="MaxRL (maximum likelihood by reinforcement)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="group_reward_mean", std_epsilon=1e-6),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "A_i = (R_i - mean R) / (mean R + eps),  0 where mean R = 0",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2602.02710",
    distribution=Distribution.POLICY_INDUCED,
    assumes="rewards of 0 and 1; groups of 16",
    addresses="hard tasks: a task's weight is about 1/p instead of 1/sqrt(p(1-p))",
    pitfalls=(
        "Needs rewards that are never negative: a negative mean flips every sign. Such a reward stops the run.",
        "One success among n gives it an advantage of n - 1: watch policy/advantage_abs_max.",
        "With A = 0 where nobody succeeds it follows the first n - 1 terms of log p, not n; with n = 2, REINFORCE.",
        UNIFORM_PITFALL,
        CLIP_PITFALL,
    ),
    differences=(
        ("the official code", "the same advantage with epsilon 1e-6; it holds other variants under similar names"),
        ("prime-rl max_rl", "the same division by the mean, under its own mask"),
        ("TRL and verl", "no such row"),
    ),
)

_OPO = AlgorithmRow(
    name="opo",
    title="OPO (length-weighted baseline)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="length_weighted"),
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|",
        "loss = -(1/N) sum_i A_i sum_t m_it lp_it",
    ),
    source="OPO (on-policy RL with optimal reward baseline), as in verl's opo estimator",
    distribution=Distribution.POLICY_INDUCED,
    assumes="on-policy data; several attempts per task",
    addresses="variance: the baseline of least variance if an attempt's gradient norm grows with its length",
    pitfalls=(
        "Advantages of a group sum to 0 over tokens, not over attempts.",
        "No ratio: a second update on the same batch is wrong, so one update per batch is required.",
        UNIFORM_PITFALL,
    ),
    differences=(
        ("verl opo", "the same baseline, under PPO's clipped loss"),
        ("TRL and prime-rl", "no such row"),
    ),
)

_TWO_SIDED = AlgorithmRow(
    name="two_sided_grpo",
    title="Two-sided GRPO (INTELLECT-2)",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2, dual_clip=4.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "A_i = R_i - mean R",
        "loss = (1/N) sum_i sum_t m_it max(-A min(r, 4), -A clip(r, 1-low, 1+high))",
    ),
    source="INTELLECT-2 report; the same function as dual clip, arXiv 1912.09729",
    distribution=Distribution.STALE_POLICY,
    assumes="asynchronous rollouts; several updates per batch",
    addresses="unbounded gradients of negative tokens whose ratio grew",
    pitfalls=(
        "It acts where A < 0 alone: where A > 0 the clip comes first.",
        UNIFORM_PITFALL,
    ),
    differences=(
        ("the report", "with an anchor of 0.001 and learning rate 3e-7; here anchor.weight is 0"),
        ("TRL delta", "the same bound on min(r, delta)"),
        ("verl clip_ratio_c", "the same function; its default is 3"),
    ),
)

_PASS_AT_K = AlgorithmRow(
    name="pass_at_k",
    title="Pass@k training",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="pass_at_k", k=4),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.28),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "W wrong of G:  P = 1 - C(W,k)/C(G,k),  s = sqrt(P (1 - P))",
        "A_right = (1 - P)/s;  A_wrong = (1 - P - C(W-1,k-1)/C(G-1,k-1))/s;  0 where s = 0",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2508.10751",
    distribution=Distribution.POLICY_INDUCED,
    assumes="success or failure alone matters; group size well above k",
    addresses="loss of diversity: rewards what at least one of k attempts reaches",
    pitfalls=(
        "A task of which fewer than k attempts fail gives no gradient at all: easy tasks fall silent.",
        "Hurts pass@1 if kept to the end; lower k over the run.",
        CLIP_PITFALL,
    ),
    differences=(
        ("the official code", "the same advantages"),
        ("verl grpo_passk", "another method: row best_lead"),
        ("TRL and prime-rl", "no such row"),
    ),
)

_BEST_LEAD = AlgorithmRow(
    name="best_lead",
    title="Lead of the best attempt over the second",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="second_best"),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "A_best = R_best - R_second;  all others 0",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2503.19595",
    distribution=Distribution.POLICY_INDUCED,
    assumes="rewards of many values: with 0 and 1, only a single success in a group counts",
    addresses="the best of a group as the aim, instead of its mean",
    pitfalls=(
        "Nothing is ever pushed down: all advantages are at least 0.",
        "Two equally good attempts cancel each other.",
        CLIP_PITFALL,
    ),
    differences=(("verl grpo_passk", "the same lead, divided by the group std unless norm_adv_by_std_in_grpo is off"),),
)

_GDPO = AlgorithmRow(
    name="gdpo",
    title="GDPO (each reward function normalised by itself)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", combine="parts", scale="batch_whiten", std_ddof=1, std_epsilon=1e-6),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "a_ik = (R_ik - mean R_k) / (std R_k + eps) in the group, for each reward function k",
        "a_i = sum_k weight_k a_ik;  A_i = (a_i - mean) / (std + eps) over the batch",
        "loss = (1/N) sum_i sum_t m_it max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="GDPO (group reward-decoupled normalisation)",
    distribution=Distribution.POLICY_INDUCED,
    assumes="an environment with several reward functions, each worth learning",
    addresses="reward functions of small spread that vanish beside one of large spread, or cancel it in the sum",
    pitfalls=(
        "A reward function that hardly varies is blown up to full size: give it a small weight.",
        "A function that does not apply to an attempt counts in none of its means.",
        STD_PITFALL,
    ),
    differences=(("TRL multi_objective_aggregation", "'normalize_then_sum' is this form"),),
)

ROWS = (_MAXRL, _OPO, _TWO_SIDED, _PASS_AT_K, _BEST_LEAD, _GDPO)

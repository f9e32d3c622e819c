"""DAPO."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    GroupFilter,
    ObjectiveSpec,
    Overlong,
    TrustRegion,
)
from posttrain.settings.rows.row import CLIP_PITFALL, AlgorithmRow

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
        CLIP_PITFALL,
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

ROWS = (_DAPO,)

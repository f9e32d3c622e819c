"""Soft trust regions, and regions chosen by covariance."""

from __future__ import annotations

from posttrain.settings.objective import (
    Aggregation,
    Distribution,
    ObjectiveSpec,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    GROUP_STD,
    STD_PITFALL,
    AlgorithmRow,
)

_CLIP_COV = AlgorithmRow(
    name="clip_cov",
    title="Clip-Cov",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="clip_cov", clip_low=1.0, clip_high=1.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "cov_it = (A - mean A)(lp - mean lp) over the step's trained tokens",
        "drop: 2e-4 N tokens at random (seeded) among those not clipped with 1 < cov < 5",
        "loss = (1/N) sum_i sum_t m_it [not dropped] max(-A r, -A clip(r, 0, 2))",
    ),
    source="arXiv 2505.22617",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several updates per batch; steps of thousands of tokens",
    addresses="entropy collapse, which follows tokens that are likely and rewarded",
    pitfalls=(
        "The mean is over the whole optimizer step; over a micro-batch it would choose other tokens.",
        "2e-4 N below 1 counts as 1: with few tokens the share is larger than it says.",
        STD_PITFALL,
    ),
    differences=(
        ("the official script and verl", "the same bounds, with clip 1/1; means over the mini-batch of one device"),
        ("TRL and prime-rl", "no such row"),
    ),
)

ROWS = (_CLIP_COV,)

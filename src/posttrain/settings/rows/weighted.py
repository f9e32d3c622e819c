"""A constant, bounded weight in place of a clip."""

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

_NEVER_SILENT = "No token ever loses its gradient: the cap bounds one token's weight, not how far the policy moves."

_CISPO = AlgorithmRow(
    name="cispo",
    title="CISPO (clipped importance weight)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="clipped_weight", weight_high=5.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=("loss = -(1/N) sum_i sum_t m_it stop(min(r, cap)) A lp_it",),
    source="arXiv 2506.13585 (MiniMax-M1)",
    distribution=Distribution.POLICY_INDUCED,
    assumes="many updates per batch (16 in the paper)",
    addresses="rare tokens that a clip silences after the first update",
    pitfalls=(
        "Implementations read epsilon_high as the cap itself or as its distance from 1: weight_bounds says which.",
        "The paper does not disclose its cap.",
        _NEVER_SILENT,
        STD_PITFALL,
    ),
    differences=(
        ("TRL loss_type='cispo'", "epsilon_high is the cap itself; it recommends 5"),
        ("verl cispo", "the weight is held in 1 +- clip ratio on both sides: weight_bounds = 'distance' with 0.2"),
        ("NeMo-RL and slime", "distances from 1"),
    ),
)

ROWS = (_CISPO,)

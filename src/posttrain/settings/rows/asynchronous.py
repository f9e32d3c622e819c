"""Corrections for data of an earlier policy."""

from __future__ import annotations

from posttrain.settings.objective import (
    Aggregation,
    Anchor,
    Correction,
    Distribution,
    ObjectiveSpec,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    GROUP_STD,
    STD_PITFALL,
    AlgorithmRow,
    Forbidden,
)

_DECOUPLED = AlgorithmRow(
    name="decoupled_ppo",
    title="AReaL's decoupled PPO",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        correction=Correction(weight="token", rule="truncate", high=5.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "w = min(exp(old - sampler), cap)",
        "loss = (1/N) sum_i sum_t m_it stop(w) max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2505.24298",
    distribution=Distribution.STALE_POLICY,
    assumes="trainer log-probs computed before the update; staleness up to 4 to 8 updates",
    addresses="stale samples that a clip around the sampler would silence merely for being stale",
    pitfalls=(
        "With one update per batch r is 1 and the clip never acts: all correction is in w.",
        "Unbounded staleness still loses; bound it.",
        "Without its weight it is PPO on data of another policy: correction.weight = 'none' is refused.",
        STD_PITFALL,
    ),
    differences=(
        ("the paper", "w is not bounded there; AReaL's code now bounds it by 5"),
        ("verl decoupled mode", "the same three policies; its cap is 2"),
        ("bypass mode", "ratio.denominator = 'sampler' and no weight"),
    ),
    forbidden=(
        Forbidden("correction", "weight", "none", "the weight is what separates it from PPO on another policy's data"),
    ),
)

_OPSM = AlgorithmRow(
    name="grpo_opsm",
    title="GRPO with an off-policy sequence mask",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2),
        correction=Correction(off_policy_mask=0.5),
        anchor=Anchor(estimator="k3_corrected"),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "drop sequence i iff A_i < 0 and (1/|y_i|) sum_t m_it (sampler - lp) > 0.5",
        "loss = (1/N) sum_i sum_t m_it keep_i max(-A r, -A clip(r, 1-low, 1+high))",
    ),
    source="arXiv 2512.02556 (DeepSeek-V3.2)",
    distribution=Distribution.STALE_POLICY,
    assumes="several updates per batch or stale data",
    addresses="negative sequences the policy has left already, whose gradient only destabilises",
    pitfalls=(
        "The bound's published value is not known; 0.5 is TRL's suggestion and 1e-4 slime's default.",
        "Positive sequences are never dropped, so what is left leans towards success.",
        STD_PITFALL,
    ),
    differences=(
        ("TRL off_policy_mask_threshold", "the same rule"),
        ("slime", "bound 1e-4"),
        ("the report", "with an anchor by ratio-corrected k3; here its weight is 0"),
    ),
)

ROWS = (_DECOUPLED, _OPSM)

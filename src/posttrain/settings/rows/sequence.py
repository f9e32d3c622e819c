"""The sequence as the unit of the ratio."""

from __future__ import annotations

from posttrain.settings.objective import (
    Aggregation,
    Distribution,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    GROUP_STD,
    STD_PITFALL,
    AlgorithmRow,
)

_GSPO_PITFALL = (
    "Sequences outside the bounds are a hundred times more frequent than clipped tokens elsewhere, and this is normal; "
    "with one update per batch the ratio is 1, and 3e-4 is below the noise of an engine of another kind."
)

_GSPO = AlgorithmRow(
    name="gspo",
    title="GSPO (geometric-mean ratio of the sequence)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        ratio=Ratio(level="sequence"),
        trust_region=TrustRegion(kind="clip", clip_low=3e-4, clip_high=4e-4),
        aggregation=Aggregation(kind="sequence_mean"),
    ),
    formula=(
        "s_i = exp((1/|y_i|) sum_t m_it (lp - old))",
        "loss = (1/S) sum_i max(-A s_i, -A clip(s_i, 1-low, 1+high))",
    ),
    source="arXiv 2507.18071",
    distribution=Distribution.POLICY_INDUCED,
    assumes="mixture-of-experts or long answers; 4 updates per batch in the paper",
    addresses="token ratios that jump when a router picks other experts",
    pitfalls=(
        _GSPO_PITFALL,
        "Bounds of token ratios (0.2) never clip here, and are refused.",
        "A long answer's ratio moves less than a short one's for the same change per token.",
        STD_PITFALL,
    ),
    differences=(
        ("TRL importance_sampling_level='sequence'", "the same ratio; loss_type and both epsilons must be set"),
        ("verl gspo", "the same; it sets token gradients through a stop-gradient trick, which gives equal gradients"),
        (
            "slime and NeMo-RL",
            "the same geometric mean; some recipes called sequence-level take the product: 'product'",
        ),
    ),
)

ROWS = (_GSPO,)

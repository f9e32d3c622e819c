"""The sequence as the unit of the ratio."""

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
    GROUP_STD,
    SAMPLER_PITFALL,
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

_GSPO_TOKEN = AlgorithmRow(
    name="gspo_token",
    title="GSPO-token (sequence ratio, token gradient)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        ratio=Ratio(level="sequence_token"),
        trust_region=TrustRegion(kind="clip", clip_low=3e-4, clip_high=4e-4),
        aggregation=Aggregation(kind="sequence_mean"),
    ),
    formula=(
        "s_it = stop(s_i) exp(lp - stop(lp)),  s_i as in gspo",
        "loss = (1/S) sum_i (1/|y_i|) sum_t m_it max(-A s_it, -A clip(s_it, 1-low, 1+high))",
    ),
    source="arXiv 2507.18071",
    distribution=Distribution.POLICY_INDUCED,
    assumes="advantages that differ between tokens of a sequence; otherwise it is gspo",
    addresses="gspo for token-level advantages",
    pitfalls=(
        _GSPO_PITFALL,
        "With one advantage for the whole sequence its gradient equals gspo's.",
        STD_PITFALL,
    ),
    differences=(
        ("TRL 'sequence_token'", "the same"),
        ("verl gspo", "implements this form"),
        ("prime-rl", "no such row"),
    ),
)

_GMPO = AlgorithmRow(
    name="gmpo",
    title="GMPO (token clip inside a geometric mean)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        ratio=Ratio(level="sequence"),
        trust_region=TrustRegion(kind="log_clip", clip_low=0.4, clip_high=0.4),
        aggregation=Aggregation(kind="sequence_mean"),
    ),
    formula=(
        "c_it = min(l, high) where A > 0, max(l, -low) where A < 0,  l = lp - old",
        "loss = -(1/S) sum_i A_i exp((1/|y_i|) sum_t m_it c_it)",
    ),
    source="arXiv 2507.20673",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several updates per batch",
    addresses="the arithmetic mean's sensitivity to single outlying ratios",
    pitfalls=(
        "Bounds are on the log ratio: 0.4 allows ratios from 0.67 to 1.49.",
        STD_PITFALL,
    ),
    differences=(
        ("verl geo_mean", "the same clip in log space"),
        ("TRL and prime-rl", "no such row"),
    ),
)

_TOPR = AlgorithmRow(
    name="topr",
    title="TOPR (tapered off-policy REINFORCE)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="none"),
        ratio=Ratio(level="product", denominator="sampler"),
        trust_region=TrustRegion(kind="taper", weight_high=1.0),
        aggregation=Aggregation(kind="sequence_sum"),
    ),
    formula=(
        "w_i = 1 where R_i >= 0, min(exp(sum_t m_it (lp - sampler)), 1) where R_i < 0",
        "loss = -(1/S) sum_i R_i stop(w_i) sum_t m_it lp_it",
    ),
    source="arXiv 2503.14286",
    distribution=Distribution.STALE_POLICY,
    assumes="rewards of +1 and -1, chosen so that positives are neither rare nor nearly all",
    addresses="stale data: positives are learnt as in supervised training, negatives fade once they are unlikely",
    pitfalls=(
        "With rewards of 0 and 1 nothing is ever pushed down: it is supervised training on successes.",
        "The product over a long answer falls below e^-20 quickly; it is computed in log space and bounded there.",
        SAMPLER_PITFALL,
    ),
    differences=(
        ("ROLL", "takes a token ratio and judges R > 0: another method"),
        ("TRL, verl, prime-rl", "no such row"),
    ),
)

ROWS = (_GSPO, _GSPO_TOKEN, _GMPO, _TOPR)

"""A constant, bounded weight in place of a clip."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distribution,
    GroupFilter,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    CENTRED,
    GROUP_STD,
    SAMPLER_PITFALL,
    STD_PITFALL,
    UNIFORM_PITFALL,
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

_AIPO = AlgorithmRow(
    name="aipo",
    title="AIPO (capped ratio to the sampler)",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="clipped_weight", weight_high=4.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=("loss = -(1/N) sum_i sum_t m_it stop(min(rho, cap)) A lp_it,  rho = exp(lp - sampler)",),
    source="arXiv 2505.24034 (LlamaRL)",
    distribution=Distribution.STALE_POLICY,
    assumes="asynchronous rollouts; a cap between 2 and 10",
    addresses="staleness and engine mismatch by one weight, without a second forward pass",
    pitfalls=(
        SAMPLER_PITFALL,
        _NEVER_SILENT,
        UNIFORM_PITFALL,
    ),
    differences=(
        ("the paper", "any advantage; here the group-centred reward"),
        ("prime-rl of August 2025", "-min(rho, 8) A with gradient through the ratio below the cap"),
        ("verl", "bypass mode with a truncated weight is the same"),
    ),
)

_SCALERL = AlgorithmRow(
    name="scalerl",
    title="ScaleRL recipe",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="group_mean", scale="batch_std", std_ddof=0, std_epsilon=1e-6),
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="clipped_weight", weight_high=5.0),
        aggregation=Aggregation(kind="prompt_average"),
        group_filter=GroupFilter(rule="mixed_success"),
    ),
    formula=(
        "A_i = (R_i - mean R) / (std of R - mean R over the batch + eps);  keep a group iff 0 < successes < G",
        "loss = -mean over groups of (1/sum_i |y_i|) sum_i sum_t m_it stop(min(rho, cap)) A lp_it",
    ),
    source="arXiv 2510.13786",
    distribution=Distribution.STALE_POLICY,
    assumes="asynchronous rollouts up to 8 updates old, groups of 16, rewards of +1 and -1, fp32 logits on both sides",
    addresses="how well a run scales, by choices that raised its asymptote",
    pitfalls=(
        "The std is of the centred rewards of the groups that are left after filtering, with ddof 0.",
        "The paper also drops tasks passed by 90 % and interrupts long thinking; neither is part of the objective.",
        SAMPLER_PITFALL,
        _NEVER_SILENT,
    ),
    differences=(
        ("the paper", "its cap is not a round constant of all runs; 5 here"),
        ("TRL, verl, prime-rl", "no such row"),
    ),
)

ROWS = (_CISPO, _AIPO, _SCALERL)

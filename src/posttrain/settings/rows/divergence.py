"""How far a probability moved, instead of a ratio."""

from __future__ import annotations

from posttrain.settings.objective import (
    Aggregation,
    Distribution,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import (
    CENTRED,
    MASK_PITFALL,
    SAMPLER_PITFALL,
    AlgorithmRow,
)

_DPPO = "arXiv 2602.04879"
_DPPO_PITFALLS = (
    "A ratio cap far below 20 hurt in the paper; at 0.5 % of tokens masked it works as intended.",
    "Mean |p - q| of 0.002 to 0.01 is healthy, 0.02 to 0.03 preceded collapse: logprobs/probability_difference_mean.",
    SAMPLER_PITFALL,
    MASK_PITFALL,
)

_DPPO_TV = AlgorithmRow(
    name="dppo_tv",
    title="DPPO with binary total variation",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="divergence_mask", divergence="tv", divergence_bound=0.15, weight_high=20.0),
        aggregation=Aggregation(kind="constant_length"),
    ),
    formula=(
        "D = |q - p|;  keep unless D > bound and (A > 0 and rho > 1, or A < 0 and rho < 1)",
        "loss = -(1/(S L)) sum_i sum_t m_it keep stop(min(rho, cap)) A lp_it",
    ),
    source=_DPPO,
    distribution=Distribution.STALE_POLICY,
    assumes="sampler log-probs of the distribution really sampled from; several updates per batch",
    addresses="ratio clips stop rare tokens and let common ones run: 0.99 to 0.8 is a ratio of 0.81",
    pitfalls=_DPPO_PITFALLS,
    differences=(
        ("the official code", "cap 5 to 1e4 by script, bound 0.15 to 0.2"),
        ("verl", "the same mask; its cap is 20"),
        ("prime-rl", "the same difference as a mask, ratio uncapped: row prime_rl"),
    ),
)

_PRIME_RL_2025 = AlgorithmRow(
    name="prime_rl_2025",
    title="Double-sided ratio mask (prime-rl, autumn 2025)",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="ratio_mask", weight_low=0.125, weight_high=8.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=("keep iff 0.125 <= rho <= 8", "loss = -(1/N) sum_i sum_t m_it keep A rho"),
    source="prime-rl, October 2025",
    distribution=Distribution.STALE_POLICY,
    assumes="asynchronous rollouts",
    addresses="outlying ratios of stale or mismatched tokens",
    pitfalls=(
        "Masked tokens still count in the denominator.",
        SAMPLER_PITFALL,
        MASK_PITFALL,
    ),
    differences=(
        ("prime-rl", "its form of October 2025; later releases mask by probability"),
        ("IcePop", "masks w, not rho"),
    ),
)

ROWS = (_DPPO_TV, _PRIME_RL_2025)

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

_DPPO_KL = AlgorithmRow(
    name="dppo_kl",
    title="DPPO with binary KL",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="divergence_mask", divergence="kl", divergence_bound=0.05, weight_high=20.0),
        aggregation=Aggregation(kind="constant_length"),
    ),
    formula=(
        "D = q log(q/p) + (1-q) log((1-q)/(1-p));  keep as in dppo_tv",
        "loss = -(1/(S L)) sum_i sum_t m_it keep stop(min(rho, cap)) A lp_it",
    ),
    source=_DPPO,
    distribution=Distribution.STALE_POLICY,
    assumes="as dppo_tv",
    addresses="as dppo_tv, stricter on tokens that were nearly certain",
    pitfalls=(
        "1 - q of nearly certain tokens is rounding in bfloat16; it is held above the dtype's epsilon.",
        *_DPPO_PITFALLS,
    ),
    differences=(
        ("the official code", "the same bound of 0.05"),
        ("TRL", "no such row"),
    ),
)

_PRIME_RL = AlgorithmRow(
    name="prime_rl",
    title="prime-rl's default",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(kind="divergence_mask", divergence="tv", divergence_bound=0.2, log_ratio_penalty=1e-3),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "keep unless (A > 0 and p - q > 0.2) or (A <= 0 and p - q < -0.2)",
        "loss = (1/N) sum_i sum_t m_it [ -keep A rho + 0.001 (log rho)^2 ]",
    ),
    source="prime-rl, August 2026",
    distribution=Distribution.STALE_POLICY,
    assumes="asynchronous rollouts up to 8 updates old",
    addresses="staleness and mismatch, by a probability mask and a pull back to the sampler",
    pitfalls=(
        "The ratio is not capped: one negative token of large ratio has a large gradient. Watch policy/ratio_max.",
        "Groups without spread still get the penalty's gradient.",
        SAMPLER_PITFALL,
        MASK_PITFALL,
    ),
    differences=(
        ("prime-rl", "the same as its default loss; its documents still show an older capped form"),
        ("dppo_tv", "no cap, a penalty, token mean"),
    ),
)

_PRIME_RL_IPO = AlgorithmRow(
    name="prime_rl_ipo",
    title="prime-rl's symmetric mask ('ipo')",
    spec=ObjectiveSpec(
        advantage=CENTRED,
        ratio=Ratio(denominator="sampler"),
        trust_region=TrustRegion(
            kind="divergence_mask",
            divergence="tv",
            divergence_bound=0.1,
            divergence_direction="any",
            log_ratio_penalty=1e-3,
        ),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=("keep iff |p - q| <= 0.1", "loss = (1/N) sum_i sum_t m_it [ -keep A rho + 0.001 (log rho)^2 ]"),
    source="prime-rl, type 'ipo', March 2026",
    distribution=Distribution.STALE_POLICY,
    assumes="as prime_rl",
    addresses="as prime_rl, with moves back to the sampler masked too",
    pitfalls=(
        "It has nothing to do with the preference method IPO.",
        SAMPLER_PITFALL,
        MASK_PITFALL,
    ),
    differences=(("prime-rl", "the same as its type 'ipo'"),),
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

ROWS = (_DPPO_TV, _DPPO_KL, _PRIME_RL, _PRIME_RL_IPO, _PRIME_RL_2025)

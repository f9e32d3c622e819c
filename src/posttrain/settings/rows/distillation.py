"""Distillation on the student's own samples."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Distillation,
    Distribution,
    ObjectiveSpec,
    Ratio,
    TrustRegion,
)
from posttrain.settings.rows.row import AlgorithmRow

_REACH = (
    "A teacher out of the student's reach teaches little: watch distillation/gap_quarter/{quarter}, "
    "distillation/unlikely_share and distillation/top_token_overlap."
)
_SHORT = (
    "Short attempts have little gap to pay: watch rollout/length_mean, above all with discount > 0 or "
    "aggregation.kind = 'sequence_sum'."
)

_ON_POLICY_DISTILLATION = AlgorithmRow(
    name="on_policy_distillation",
    title="On-policy distillation (single-sample reverse KL)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="none"),
        ratio=Ratio(level="token", denominator="sampler"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="token_mean"),
        distillation=Distillation(weight=1.0, kind="sampled", reward_weight=0.0),
    ),
    formula=(
        "A_it = weight (log teacher_it - log mu_it) + reward_weight A_i,  mu the sampler",
        "loss = -(1/N) sum_i sum_t m_it r_it A_it,  r = exp(lp - log mu)",
    ),
    source="Thinking Machines, 'On-policy distillation' (2025); the reverse KL of arXiv 2306.08543",
    distribution=Distribution.POLICY_INDUCED,
    assumes="a teacher with the student's tokenizer, better on these tasks; works with one attempt per task",
    addresses="exposure bias of imitation: the student is corrected on its own prefixes, densely, without a reward",
    pitfalls=(
        _REACH,
        "Teacher and sampler must be at one temperature; teacher.temperature follows rollout.temperature.",
        "Only the sampled token is judged: what the teacher would have preferred instead is not said.",
        _SHORT,
        "The ratio is not bounded: with several updates per batch set trust_region.kind.",
        "With a reward added, set advantage.baseline = 'group_mean' and distillation.reward_weight = 1.",
    ),
    differences=(
        (
            "the authors' code",
            "it sums over tokens; here token_mean, so the learning rate does not depend on the batch",
        ),
        (
            "prime-rl ref_kl",
            "takes the gap to the current policy, masks tokens whose probability fell by more than 0.2 and adds "
            "0.001 (log ratio)^2",
        ),
        ("slime --opd-kl-coef", "the same term, added to the reward's advantage; the coefficient is 1 there too"),
    ),
)

_GKD = AlgorithmRow(
    name="gkd",
    title="GKD (generalised JSD over the vocabulary, on the student's samples)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="none"),
        ratio=Ratio(level="none"),
        trust_region=TrustRegion(kind="none"),
        aggregation=Aggregation(kind="token_mean"),
        distillation=Distillation(weight=1.0, kind="full_vocabulary", beta=0.5, reward_weight=0.0),
    ),
    formula=(
        "M = beta P + (1 - beta) Q,  P teacher, Q student, both at the sampling temperature",
        "loss = (1/N) sum_i sum_t m_it weight [ beta KL(P || M) + (1 - beta) KL(Q || M) ]",
        "beta = 0: KL(P || Q);  beta = 1: KL(Q || P)",
    ),
    source="arXiv 2306.13649 (GKD)",
    distribution=Distribution.POLICY_INDUCED,
    assumes="a teacher with the student's vocabulary in this process; works with one attempt per task",
    addresses="the variance of one sample: every token of the vocabulary is judged at every position",
    pitfalls=(
        _REACH,
        "Costs the teacher's head and two sets of logits per chunk; kind = 'top_k' costs the same logits here and "
        "less where an engine sends them.",
        "The gradient ignores that the student's tokens change what follows, as the method does.",
        "beta near 0 or 1 (but not there) shrinks the JSD, and with it the step.",
    ),
    differences=(
        (
            "TRL GKDTrainer",
            "mixes in answers of a data set (lmbda 0.5) and works at temperature 0.9; its ends are the plain KLs too",
        ),
        ("the paper", "its JSD vanishes at both ends of beta; here, as in TRL, the ends are the plain KLs"),
    ),
)

ROWS = (
    _ON_POLICY_DISTILLATION,
    _GKD,
)

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

_SAPO = AlgorithmRow(
    name="sapo",
    title="SAPO (soft gate)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="soft_gate", gate_positive=1.0, gate_negative=1.05),
        aggregation=Aggregation(kind="sequence_mean"),
    ),
    formula=(
        "tau = 1 where A > 0, else 1.05",
        "loss = -(1/S) sum_i (1/|y_i|) sum_t m_it (4/tau) sigmoid(tau (r - 1)) A",
    ),
    source="arXiv 2511.20347",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several updates per batch",
    addresses="the edge of a hard clip: the gradient's weight is 1 at r = 1 and fades smoothly",
    pitfalls=(
        "The loss is about -2A/tau at r = 1, not -A: do not compare losses between rows.",
        "Does not combine with a decoupled weight in AReaL; here it does, and nobody has published how it behaves.",
        STD_PITFALL,
    ),
    differences=(("TRL, verl, AReaL", "the same gate and temperatures"),),
)

_TRPO = AlgorithmRow(
    name="trpo_penalty",
    title="TRPO's practical form (adaptive KL penalty)",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="kl_penalty", kl_weight=1.0, kl_target=0.01),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "loss = (1/N) sum_i sum_t m_it [ -A r + beta (r - 1 - log r) ]",
        "after an update: beta doubles if the mean of r - 1 - log r exceeds 1.5 target, halves below target/1.5",
    ),
    source="arXiv 1707.06347 (section 4), a penalty in place of the constraint of arXiv 1502.05477",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several updates per batch: in the first, r is 1 and the divergence 0",
    addresses="a bound on the divergence itself, without conjugate gradients and a line search",
    pitfalls=(
        "It is a penalty: a single update may overshoot the target, and beta answers only afterwards.",
        "The divergence is estimated on the sampled tokens (k3, samples of the policy before the update).",
        "beta is state: it is kept in checkpoints and shown as policy/kl_penalty_weight.",
        "With one update per batch the divergence never shows, so a target is refused.",
    ),
    differences=(
        ("TRPO", "solves a constrained problem; not done for language models"),
        ("verl's adaptive controller", "acts on an anchor to a reference, in the reward"),
        ("TRL and prime-rl", "no such row"),
    ),
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

_KL_COV = AlgorithmRow(
    name="kl_cov",
    title="KL-Cov",
    spec=ObjectiveSpec(
        advantage=GROUP_STD,
        trust_region=TrustRegion(kind="kl_cov", covariance_share=2e-4, covariance_weight=1.0),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "loss = (1/N) sum_i sum_t m_it [ -A r + [in the top 2e-4 N by cov] |lp - old| ]",
        "cov as in clip_cov",
    ),
    source="arXiv 2505.22617",
    distribution=Distribution.POLICY_INDUCED,
    assumes="several updates per batch: in the first, |lp - old| is 0",
    addresses="entropy collapse, by holding the most covariant tokens back",
    pitfalls=(
        "No clip: nothing else bounds the ratio. Watch policy/ratio_max.",
        "The gradient of |lp - old| at 0 is taken as 0.",
        STD_PITFALL,
    ),
    differences=(
        ("the official script and verl", "the same, with means over one device"),
        ("TRL and prime-rl", "no such row"),
    ),
)

ROWS = (_SAPO, _TRPO, _CLIP_COV, _KL_COV)

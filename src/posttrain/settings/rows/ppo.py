"""PPO: a learned value of every token as the baseline."""

from __future__ import annotations

from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Anchor,
    Critic,
    Distribution,
    ObjectiveSpec,
    TrustRegion,
)
from posttrain.settings.rows.row import AlgorithmRow

_PPO = AlgorithmRow(
    name="ppo",
    title="PPO with a critic (GAE over sampled tokens, dual clip, value clip)",
    spec=ObjectiveSpec(
        advantage=Advantage(baseline="critic", scale="token_whiten", std_ddof=1, std_epsilon=1e-8),
        critic=Critic(),
        trust_region=TrustRegion(kind="clip", clip_low=0.2, clip_high=0.2, dual_clip=3.0),
        anchor=Anchor(estimator="k1", place="reward"),
        aggregation=Aggregation(kind="token_mean"),
    ),
    formula=(
        "r_t = R [t = last] - weight k1_t;  t' is the next sampled token: tool tokens take no step",
        "d_t = r_t + gamma V_t' - V_t,  A_t = d_t + gamma lambda A_t',  return_t = A_t + V_t",
        "A = (A - mean A) / sqrt(var A + eps) over all trained tokens of the batch, after the returns",
        "L = max(-A r, -A clip(r, 1-low, 1+high));  where A < 0: min(L, -c A);  loss = (1/N) sum m L",
        "critic: 0.5/N sum m max((V - return)^2, (clip(V, V_old - v, V_old + v) - return)^2)",
    ),
    source="arXiv 1707.06347 (PPO), 1506.02438 (GAE), 1912.09729 (dual clip)",
    distribution=Distribution.POLICY_INDUCED,
    assumes="a critic that can learn the value of a prefix: rewards that depend on the prompt or on steps already "
    "taken; memory for a second trained model",
    addresses="credit within an answer and between tasks, with one attempt per task: a baseline for every token",
    pitfalls=(
        "A critic that knows nothing is no baseline: watch policy/critic_explained_variance, and give it "
        "critic.warmup_steps before the policy moves.",
        "Below lambda 1 a wrong critic biases the gradient; at lambda 1 it only adds variance.",
        "Whitening divides by the spread of whatever is left: when every answer succeeds, the critic's errors become "
        "the advantages.",
        "critic.value_clip is in units of the return: rewards of 0 to 100 need another one, or none.",
        "A cut answer's return ends at its reward (critic.truncated = 'end'). If cut answers get no grade of their "
        "own, 'bootstrap' is the unbiased choice.",
    ),
    differences=(
        ("the paper", "a shared network, entropy bonus, gamma 0.99 and lambda 0.95; no dual clip"),
        (
            "TRL PPOTrainer",
            "whitens rewards as an option and advantages always, runs 4 epochs with vf_coef 0.1 in one loss over "
            "policy and value model, lambda 0.95, k1 0.05 in the reward; no dual clip; a value head on a model of its "
            "own that starts from the reward model",
        ),
        (
            "verl (adv_estimator='gae')",
            "the same estimator, whitening (always on there), dual clip 3, value clip 0.5 in its configuration and "
            "factor 0.5; the critic's learning rate 1e-5; the KL in the reward is off by default as here",
        ),
        ("OpenRLHF", "runs GAE over all positions, tool tokens included: equal only at gamma = lambda = 1"),
        ("prime-rl", "has no critic"),
    ),
)

ROWS = (_PPO,)

"""Layer 1, on tasks never trained on. ``{environment}`` is the name of the environment evaluated."""

from __future__ import annotations

from posttrain.signals.signal import Layer, Reduction, Signal

_BOOTSTRAP = "95 % bootstrap over tasks, the samples of a task staying together."

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "evaluation/{environment}/reward_mean",
        Layer.REWARD,
        "reward",
        "Mean over held-out tasks of the mean reward of a task's gradable samples.",
        Reduction.MEAN,
    ),
    Signal(
        "evaluation/{environment}/pass@{k}",
        Layer.REWARD,
        "probability",
        "Unbiased estimate of the probability that at least one of k samples succeeds, 1 - C(n-c, k) / C(n, k) for c "
        "successes in n samples (Chen et al. 2021), averaged over tasks.",
        Reduction.MEAN,
    ),
    Signal(
        "evaluation/{environment}/pass@{k}_low",
        Layer.REWARD,
        "probability",
        f"Lower end of the interval of pass@k: {_BOOTSTRAP}",
        Reduction.LAST,
    ),
    Signal(
        "evaluation/{environment}/pass@{k}_high",
        Layer.REWARD,
        "probability",
        f"Upper end of the interval of pass@k: {_BOOTSTRAP}",
        Reduction.LAST,
    ),
    Signal(
        "evaluation/{environment}/majority@{k}",
        Layer.REWARD,
        "probability",
        "Probability that the answer given most often among k samples is right, averaged over tasks.",
        Reduction.MEAN,
    ),
    Signal(
        "evaluation/{environment}/parsable_share",
        Layer.REWARD,
        "share",
        "Share of the gradable samples in which the grader found an answer.",
        Reduction.SHARE,
    ),
    Signal(
        "evaluation/{environment}/greedy",
        Layer.REWARD,
        "share",
        "Share of held-out tasks solved by greedy decoding.",
        Reduction.SHARE,
    ),
    Signal(
        "evaluation/{environment}/length_mean",
        Layer.ROLLOUT,
        "tokens",
        "Mean sampled tokens per evaluation trajectory.",
        Reduction.MEAN,
    ),
    Signal(
        "evaluation/{environment}/truncated_share",
        Layer.ROLLOUT,
        "share",
        "Share of evaluation trajectories that ended by length or context limit.",
        Reduction.SHARE,
    ),
    Signal(
        "evaluation/{environment}/ungradable_share",
        Layer.REWARD,
        "share",
        "Share of the evaluation samples without a reward; they are in no other evaluation number.",
        Reduction.SHARE,
    ),
)

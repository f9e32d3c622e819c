"""Layer 2: does the critic know what an answer is worth?"""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "policy/critic_loss",
        Layer.POLICY,
        "squared return",
        "Half the mean squared distance of the critic's values to the returns over the trained tokens (after the value "
        "clip), averaged over its passes.",
        Reduction.MEAN,
        assumes="Compare it with half the variance of the returns: knowing nothing but their mean gives that.",
    ),
    Signal(
        "policy/critic_clip_fraction",
        Layer.POLICY,
        "share",
        "Share of trained tokens whose gradient the value clip removes.",
        Reduction.SHARE,
        assumes="0 with one pass over each batch. High in the first steps of a fresh value head without a fault.",
    ),
    Signal(
        "policy/critic_grad_norm",
        Layer.POLICY,
        "L2 norm",
        "Global norm of the critic's gradient before clipping.",
        Reduction.LAST,
    ),
    Signal(
        "policy/critic_learning_rate",
        Layer.POLICY,
        "per step",
        "Learning rate of the critic's last optimizer step.",
        Reduction.LAST,
    ),
    Signal(
        "policy/critic_explained_variance",
        Layer.POLICY,
        "share",
        "1 - Var(return - value) / Var(return) over the trained tokens, with the values that the batch's advantages "
        "were computed with. Absent where the returns do not vary.",
        Reduction.LAST,
        HealthyRange(
            0.0,
            1.0,
            "below 0 the values predict worse than their mean does",
            Evidence.DERIVED,
            "After the critic's first steps.",
        ),
    ),
    Signal(
        "policy/value_mean",
        Layer.POLICY,
        "return",
        "Mean of the critic's values over the trained tokens, before the update.",
        Reduction.MEAN,
        assumes="It should follow policy/return_mean with a lag of some steps.",
    ),
    Signal(
        "policy/return_mean",
        Layer.POLICY,
        "return",
        "Mean return (advantage plus value) over the trained tokens.",
        Reduction.MEAN,
    ),
)

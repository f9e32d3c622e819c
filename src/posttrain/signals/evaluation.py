"""Layer 1, on tasks never trained on. ``{environment}`` is the name of the environment evaluated.

Interval ends are named after their quantity with ``_low`` and ``_high``.
"""

from __future__ import annotations

from posttrain.signals.signal import Layer, Reduction, Signal


def _with_interval(name: str, unit: str, definition: str) -> tuple[Signal, Signal, Signal]:
    """A mean over tasks and the ends of its interval."""
    quantity = name.rpartition("/")[2]

    def end(side: str) -> str:
        return f"{side} end of the 95 % interval of {quantity}: bootstrap over tasks, samples of a task kept together."

    return (
        Signal(name, Layer.REWARD, unit, definition, Reduction.MEAN),
        Signal(f"{name}_low", Layer.REWARD, unit, end("Lower"), Reduction.LAST),
        Signal(f"{name}_high", Layer.REWARD, unit, end("Upper"), Reduction.LAST),
    )


def _share(quantity: str, definition: str, layer: Layer = Layer.REWARD) -> Signal:
    return Signal(f"evaluation/{{environment}}/{quantity}", layer, "share", definition, Reduction.SHARE)


SIGNALS: tuple[Signal, ...] = (
    *_with_interval(
        "evaluation/{environment}/reward_mean",
        "reward",
        "Mean over held-out tasks of the mean reward of a task's gradable samples.",
    ),
    *_with_interval(
        "evaluation/{environment}/pass@{k}",
        "probability",
        "Unbiased estimate of the probability that at least one of k samples succeeds, 1 - C(n-c, k) / C(n, k) for c "
        "successes in n gradable samples (Chen et al. 2021, arXiv 2107.03374), averaged over tasks.",
    ),
    *_with_interval(
        "evaluation/{environment}/majority@{k}",
        "probability",
        "Probability that the answer given most often among k samples is right, as the expectation over subsets of the "
        "samples of a task, averaged over tasks.",
    ),
    _share("greedy_success", "Share of held-out tasks solved by greedy decoding."),
    _share("parsable_share", "Share of the gradable samples in which the grader found an answer."),
    _share("correct_given_parsable", "Share of the parsable samples that succeed."),
    _share("ungradable_share", "Share of the samples without a reward; they are in no other evaluation number."),
    _share("truncated_share", "Share of the samples that ended by length or context limit.", Layer.ROLLOUT),
    Signal(
        "evaluation/{environment}/length_mean",
        Layer.ROLLOUT,
        "tokens",
        "Mean sampled tokens of a sample.",
        Reduction.MEAN,
    ),
    Signal(
        "evaluation/{environment}/tasks",
        Layer.REWARD,
        "tasks",
        "Held-out tasks evaluated.",
        Reduction.LAST,
    ),
)

"""Layers 4 to 6: where time and memory go."""

from __future__ import annotations

from posttrain.signals.signal import Layer, Reduction, Signal


def _phase(name: str, definition: str, layer: Layer = Layer.SCHEDULE) -> Signal:
    return Signal(f"time/{name}", layer, "s", definition, Reduction.SUM)


SIGNALS: tuple[Signal, ...] = (
    _phase("step", "Wall-clock time of the whole step, evaluation and checkpoint excluded."),
    _phase("rollout", "Wall-clock time of sampling.", Layer.ROLLOUT),
    _phase("grading", "Wall-clock time of grading that nothing else hid.", Layer.REWARD),
    _phase("scoring", "Wall-clock time of computing log-probs that are not the loss's own.", Layer.LOGPROBS),
    _phase("training", "Wall-clock time of forward, backward and optimizer.", Layer.POLICY),
    _phase("critic", "Wall-clock time of training a critic of its own.", Layer.POLICY),
    _phase("sync", "Wall-clock time of giving new weights to the engine."),
    _phase("evaluation", "Wall-clock time of evaluation, its grading included."),
    _phase("checkpoint", "Wall-clock time of saving."),
    _phase("writing", "Wall-clock time of writing trajectories and metrics."),
    Signal(
        "train/tokens_per_second",
        Layer.POLICY,
        "tokens/s",
        "Tokens computed by the trainer (a shared prompt once, rows without a backward pass included) divided by the "
        "seconds of training.",
        Reduction.LAST,
    ),
    Signal(
        "train/micro_batches",
        Layer.POLICY,
        "micro-batches",
        "Forward and backward passes of the step.",
        Reduction.SUM,
    ),
    Signal(
        "train/computed_tokens",
        Layer.POLICY,
        "tokens",
        "Tokens that went through the model in training; below the tokens of the batch where shared prompts are "
        "computed once.",
        Reduction.SUM,
    ),
    Signal(
        "run/peak_memory",
        Layer.PARALLEL,
        "bytes",
        "Highest resident memory of the process so far.",
        Reduction.MAX,
    ),
    Signal(
        "run/peak_device_memory",
        Layer.PARALLEL,
        "bytes",
        "Highest memory allocated on the accelerator so far.",
        Reduction.MAX,
    ),
    Signal(
        "run/tracker_failures",
        Layer.SCHEDULE,
        "trackers",
        "Trackers that raised and were switched off in this attempt; the run directory is complete without them.",
        Reduction.LAST,
    ),
)

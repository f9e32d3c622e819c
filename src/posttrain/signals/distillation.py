"""Layer 2: is the teacher within the student's reach?"""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "distillation/gap",
        Layer.POLICY,
        "nats per token",
        "Mean of the student's minus the teacher's log-prob over the trained tokens, which the student sampled: the "
        "single-sample estimate of KL(student || teacher).",
        Reduction.MEAN,
        assumes="Both at the sampling temperature. It should fall; a gap that stays is a teacher out of reach, or one "
        "whose tokens do not belong to these prompts.",
    ),
    Signal(
        "distillation/gap_quarter/{quarter}",
        Layer.POLICY,
        "nats per token",
        "The same over one quarter of each attempt's trained tokens (1: the first).",
        Reduction.MEAN,
        assumes="Attempts of four tokens or more. A gap that grows from quarter to quarter: the teacher does not "
        "know what to do with the student's prefixes.",
    ),
    Signal(
        "distillation/divergence",
        Layer.POLICY,
        "nats per token",
        "Mean of the divergence in the loss (over the vocabulary, or its top k and a tail) over the trained tokens, "
        "before the first update.",
        Reduction.MEAN,
    ),
    Signal(
        "distillation/unlikely_share",
        Layer.POLICY,
        "share",
        "Share of trained tokens to which the teacher gives a probability below 1e-4.",
        Reduction.SHARE,
        HealthyRange(
            None,
            0.05,
            "own choice: each such token pushes with an advantage of -9 or less, so that a few per cent decide the "
            "gradient",
            Evidence.PROPOSED,
            "A teacher of the student's own family, after the first steps.",
        ),
    ),
    Signal(
        "distillation/teacher_entropy",
        Layer.POLICY,
        "nats per token",
        "Mean entropy of the teacher's next-token distribution on the student's prefixes, over the trained tokens.",
        Reduction.MEAN,
        assumes="Rising with position while the student's own does not: the teacher is guessing.",
    ),
    Signal(
        "distillation/top_token_overlap",
        Layer.POLICY,
        "share",
        "Share of the student's 16 likeliest tokens that are among the teacher's 16 likeliest, over the first "
        "positions of the batch (at most 512).",
        Reduction.MEAN,
        assumes="Near 0, the teacher's advice is about tokens the student never samples: sampled tokens cannot carry "
        "it, the whole vocabulary can.",
    ),
)

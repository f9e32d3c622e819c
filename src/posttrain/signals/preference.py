"""Layers 1 and 2 of runs on fixed data: what a step's rows say, and the same of held-out rows.

``preference/...`` is of the rows of a step before its update, ``held_out/...`` of all held-out rows.
"""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal

_BOTH = (
    (
        "accuracy",
        Layer.POLICY,
        "share",
        "Share of pairs whose chosen answer has the larger reward, implicit or of the reward model; a tie counts one "
        "half. For labelled answers: of all couples of a desirable and an undesirable one.",
        Reduction.LAST,
    ),
    (
        "margin",
        Layer.POLICY,
        "reward",
        "Mean reward of chosen (desirable) minus mean reward of rejected (undesirable) answers. The implicit reward is "
        "beta x (log-prob - reference log-prob).",
        Reduction.LAST,
    ),
    ("chosen_reward", Layer.POLICY, "reward", "Mean reward of chosen (desirable) answers.", Reduction.LAST),
    ("rejected_reward", Layer.POLICY, "reward", "Mean reward of rejected (undesirable) answers.", Reduction.LAST),
    (
        "chosen_logprob",
        Layer.POLICY,
        "nats per answer",
        "Mean log-prob of chosen (desirable) answers, summed over their tokens.",
        Reduction.LAST,
    ),
    (
        "rejected_logprob",
        Layer.POLICY,
        "nats per answer",
        "Mean log-prob of rejected (undesirable) answers, summed over their tokens.",
        Reduction.LAST,
    ),
    (
        "chosen_logprob_change",
        Layer.POLICY,
        "nats per token",
        "Log-prob of the chosen (desirable) answers minus the initial weights' one, per token. Below 0 the policy "
        "makes rarer what it should prefer.",
        Reduction.LAST,
    ),
    (
        "ranking_accuracy",
        Layer.POLICY,
        "share",
        "Share of pairs whose chosen answer has the larger log-prob under the policy itself, without the reference: "
        "what sampling would prefer. A tie counts one half.",
        Reduction.LAST,
    ),
    (
        "length_gap",
        Layer.REWARD,
        "tokens",
        "Mean trained tokens of chosen (desirable) minus rejected (undesirable) answers.",
        Reduction.LAST,
    ),
    (
        "length_margin_correlation",
        Layer.POLICY,
        "correlation",
        "Pearson correlation over pairs (over single answers: over answers) of length gap and reward margin: near 1 "
        "the reward is length.",
        Reduction.LAST,
    ),
    (
        "length_auc",
        Layer.REWARD,
        "probability",
        "How well length alone predicts which answer was chosen: share of pairs whose chosen answer is longer, ties "
        "one half. 0.5 predicts nothing.",
        Reduction.LAST,
    ),
)

_LENGTH_RANGE = HealthyRange(
    None,
    0.5,
    "a reward that moves with length more than with anything else",
    Evidence.PROPOSED,
    "At least 32 pairs; a task in which longer is not better.",
)


def _of(prefix: str) -> tuple[Signal, ...]:
    return tuple(
        Signal(
            f"{prefix}/{name}",
            layer,
            unit,
            definition,
            reduction,
            _LENGTH_RANGE if name == "length_margin_correlation" else None,
        )
        for name, layer, unit, definition, reduction in _BOTH
    )


SIGNALS: tuple[Signal, ...] = (
    *_of("preference"),
    *_of("held_out"),
    Signal(
        "preference/style_auc/{feature}",
        Layer.REWARD,
        "probability",
        "How well one number of an answer's surface predicts which was chosen, over the pairs of the step: lines, "
        "punctuation characters, marks of Markdown.",
        Reduction.LAST,
    ),
    Signal(
        "preference/kl",
        Layer.POLICY,
        "nats per answer",
        "KTO's reference point z0: mean over the step of log-prob minus reference log-prob of answers put after "
        "prompts they do not belong to, at least 0.",
        Reduction.LAST,
    ),
    Signal(
        "held_out/loss",
        Layer.POLICY,
        "objective",
        "The objective on held-out rows, with their own denominators; of a reward model and KTO too.",
        Reduction.LAST,
    ),
    Signal(
        "held_out/token_nll",
        Layer.POLICY,
        "nats per token",
        "Minus the log-prob of the held-out answers' trained tokens, per token (supervised training).",
        Reduction.LAST,
    ),
    Signal(
        "held_out/style_accuracy",
        Layer.REWARD,
        "share",
        "Share of held-out pairs that a logistic regression on length, lines, punctuation and Markdown marks, fitted "
        "on the training pairs, puts the right way round. An accuracy that is no higher has learnt the surface.",
        Reduction.LAST,
    ),
    Signal("held_out/rows", Layer.REWARD, "rows", "Held-out rows evaluated.", Reduction.SUM),
    Signal("data/train_rows", Layer.REWARD, "rows", "Rows that can be trained on.", Reduction.LAST),
    Signal("data/held_out_rows", Layer.REWARD, "rows", "Rows held out.", Reduction.LAST),
    Signal(
        "data/too_long_rows", Layer.REWARD, "rows", "Rows left out because they exceed data.max_tokens.", Reduction.LAST
    ),
    Signal(
        "data/unusable_rows",
        Layer.REWARD,
        "rows",
        "Rows left out because nothing can be learnt from them (equal or empty answers, other prompts on both sides, "
        "a margin that is no number).",
        Reduction.LAST,
    ),
    Signal(
        "data/length_auc",
        Layer.REWARD,
        "probability",
        "How well length alone predicts which answer was chosen, over all training pairs.",
        Reduction.LAST,
    ),
    Signal(
        "data/style_auc/{feature}",
        Layer.REWARD,
        "probability",
        "How well one number of an answer's surface predicts which was chosen, over all training pairs.",
        Reduction.LAST,
    ),
    Signal("data/epoch", Layer.SCHEDULE, "passes", "Passes over the training rows so far.", Reduction.LAST),
)

"""Quantities that only other frameworks log, or that readers derive from what a log holds.

They keep their own names because their definitions differ from the nearest signal written here.
"""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal


def _foreign(
    name: str,
    layer: Layer,
    unit: str,
    definition: str,
    reduction: Reduction = Reduction.MEAN,
    healthy: HealthyRange | None = None,
    assumes: str = "",
) -> Signal:
    return Signal(name, layer, unit, definition, reduction, healthy, assumes, written=False)


_REWARD: tuple[Signal, ...] = (
    _foreign(
        "reward/zero_variance_count/{reward}",
        Layer.REWARD,
        "groups",
        "Groups whose rewards all equal this value.",
        Reduction.SUM,
        assumes="A count, not a share: it needs the number of groups to be judged.",
    ),
    _foreign(
        "evaluation/{environment}/part/{part}/mean",
        Layer.REWARD,
        "reward",
        "Mean of one named part of the reward over held-out samples.",
    ),
)

_UPDATE: tuple[Signal, ...] = (
    _foreign(
        "policy/clip_fraction",
        Layer.POLICY,
        "share",
        "Share of trained tokens whose gradient a clip bound removes, on either side. Where a log holds the sides "
        "apart, readers add them.",
        Reduction.SHARE,
        HealthyRange(
            0.0,
            0.2,
            "above 0.2 together with growing length and flat reward in public runs",
            Evidence.PROPOSED,
            "Token ratios, clip near 0.2, up to four updates per batch. 0 by construction with one update per batch.",
        ),
    ),
    _foreign(
        "policy/clip_fraction_high_row_max",
        Layer.POLICY,
        "share",
        "Largest share of clipped tokens of one trajectory at the upper bound.",
        Reduction.MAX,
    ),
    _foreign(
        "policy/clip_fraction_low_row_min",
        Layer.POLICY,
        "share",
        "Smallest share of clipped tokens of one trajectory at the lower bound; practically always 0.",
        Reduction.MIN,
    ),
    _foreign("policy/advantage_mean", Layer.POLICY, "advantage", "Mean advantage of the trained tokens."),
    _foreign(
        "policy/advantage_max",
        Layer.POLICY,
        "advantage",
        "Largest advantage of a trained token, sign kept.",
        Reduction.MAX,
    ),
    _foreign(
        "policy/advantage_min",
        Layer.POLICY,
        "advantage",
        "Smallest advantage of a trained token, sign kept.",
        Reduction.MIN,
    ),
    _foreign(
        "policy/anchor_weight",
        Layer.POLICY,
        "coefficient",
        "Coefficient of the KL to the reference in this step; a controller may move it.",
        Reduction.LAST,
    ),
    _foreign(
        "policy/entropy_weight",
        Layer.POLICY,
        "coefficient",
        "Coefficient of the entropy bonus in this step; a controller may move it.",
        Reduction.LAST,
    ),
)

_COMPARISON: tuple[Signal, ...] = (
    _foreign(
        "logprobs/ratio_mean",
        Layer.LOGPROBS,
        "ratio",
        "Mean of exp(d) over the sampled tokens, d = trainer - sampler log-prob, before any clip.",
        Reduction.MEAN,
        HealthyRange(
            0.95,
            1.05,
            "its expectation is 1 where both sides hold the same distribution",
            Evidence.DERIVED,
            "Sampler and trainer hold the same policy version; enough tokens.",
        ),
    ),
    _foreign(
        "logprobs/mismatch_k3_max",
        Layer.LOGPROBS,
        "nats",
        "Largest exp(d) - 1 - d of one token.",
        Reduction.MAX,
    ),
    _foreign(
        "logprobs/chi2",
        Layer.LOGPROBS,
        "divergence",
        "Mean of exp(2 d), minus 1, over the sampled tokens: chi-square divergence of the trainer's policy from the "
        "sampler's.",
        Reduction.MEAN,
        HealthyRange(None, 1.0, "verl's documentation warns above 1", Evidence.PROPOSED, "Token level."),
    ),
    _foreign(
        "logprobs/correction_mean",
        Layer.LOGPROBS,
        "weight",
        "Mean weight by which sampler/trainer differences are corrected, after its bounds and masks.",
        Reduction.MEAN,
        HealthyRange(0.5, 2.0, "verl's documentation warns outside", Evidence.PROPOSED, "Correction is on."),
    ),
    _foreign(
        "logprobs/correction_max",
        Layer.LOGPROBS,
        "weight",
        "Largest such weight. At the bound it says nothing about the tail beyond it.",
        Reduction.MAX,
    ),
    _foreign(
        "logprobs/correction_min",
        Layer.LOGPROBS,
        "weight",
        "Smallest such weight; 0 means that tokens were dropped.",
        Reduction.MIN,
    ),
    _foreign(
        "logprobs/correction_bounded_share",
        Layer.LOGPROBS,
        "share",
        "Share of tokens whose correction weight lies at or beyond a bound.",
        Reduction.SHARE,
    ),
    _foreign(
        "logprobs/rejected_share",
        Layer.LOGPROBS,
        "share",
        "Share of tokens kept out of the loss because sampler and trainer differ too much.",
        Reduction.SHARE,
        HealthyRange(None, 0.2, "what is rejected is not trained on", Evidence.PROPOSED, "Rejection is on."),
    ),
)

_SAMPLING: tuple[Signal, ...] = (
    _foreign("rollout/length_min", Layer.ROLLOUT, "tokens", "Fewest sampled tokens of a trajectory.", Reduction.MIN),
    _foreign(
        "rollout/terminated_length_mean",
        Layer.ROLLOUT,
        "tokens",
        "Mean sampled tokens of the trajectories that ended by themselves; 0 where none did.",
    ),
    _foreign(
        "rollout/terminated_length_min",
        Layer.ROLLOUT,
        "tokens",
        "Fewest sampled tokens of a trajectory that ended by itself; 0 where none did.",
        Reduction.MIN,
    ),
    _foreign(
        "rollout/terminated_length_max",
        Layer.ROLLOUT,
        "tokens",
        "Most sampled tokens of a trajectory that ended by itself; 0 where none did.",
        Reduction.MAX,
    ),
    _foreign("rollout/prompt_length_mean", Layer.ROLLOUT, "tokens", "Mean tokens of a prompt."),
    _foreign("rollout/prompt_length_max", Layer.ROLLOUT, "tokens", "Most tokens of a prompt.", Reduction.MAX),
    _foreign("rollout/prompt_length_min", Layer.ROLLOUT, "tokens", "Fewest tokens of a prompt.", Reduction.MIN),
    _foreign(
        "rollout/prompt_truncated_share",
        Layer.ROLLOUT,
        "share",
        "Share of prompts as long as their limit.",
        Reduction.SHARE,
    ),
    _foreign(
        "rollout/total_length_mean", Layer.ROLLOUT, "tokens", "Mean tokens of prompt and completion of a trajectory."
    ),
    _foreign(
        "rollout/total_tokens",
        Layer.ROLLOUT,
        "tokens",
        "Tokens of prompts and completions since the start of the run: a running total, not a value of the step.",
        Reduction.LAST,
    ),
    _foreign(
        "rollout/repetition_share",
        Layer.ROLLOUT,
        "share",
        "Share of trajectories that a repetition test marks as degenerate.",
        Reduction.SHARE,
        HealthyRange(None, 0.05, "repetition is no answer", Evidence.PROPOSED, "Free text."),
    ),
    _foreign("rollout/turns_mean", Layer.ROLLOUT, "turns", "Mean turns of a trajectory."),
    _foreign("rollout/tool_calls_mean", Layer.ROLLOUT, "calls", "Mean tool calls of a trajectory."),
    _foreign(
        "rollout/tool_failure_share",
        Layer.ROLLOUT,
        "share",
        "Share of tool calls that failed.",
        Reduction.SHARE,
        HealthyRange(
            None,
            0.1,
            "a service that refused 62 % of its calls went unnoticed in a public run",
            Evidence.PROPOSED,
            "Tools that can succeed.",
        ),
    ),
)

_PROGRESS: tuple[Signal, ...] = (
    _foreign("run/epoch", Layer.SCHEDULE, "epochs", "Passes over the training tasks so far.", Reduction.LAST),
)

SIGNALS: tuple[Signal, ...] = _REWARD + _UPDATE + _COMPARISON + _SAMPLING + _PROGRESS

"""The policy-identity table: for everything that is on, which policy sampled, and does the objective still hold."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.rundir.info import PolicyIdentity

_CURRENT = "the policy being trained"


@dataclass(frozen=True, slots=True)
class IdentityFacts:
    """What is on in a run, in plain values. Types are names such as ``float32``.

    ``exact_batching`` is true if the sampler's log-prob of a row was measured not to depend on the other
    rows. ``group_filter`` is empty without one. ``depth`` is how many batches sampling runs ahead.
    ``corrects_mismatch`` is true if the ratio's denominator is the sampler's log-prob; ``mismatch_weight`` is the kind
    of weight that corrects it otherwise, or empty.
    """

    compute_dtype: str
    master_dtype: str
    exact_batching: bool
    shared_prompt_sampling: bool
    shared_prompt_training: bool
    lora: bool = False
    temperature: float = 1.0
    group_filter: str = ""
    overlong_filter: bool = False
    soft_overlong: bool = False
    skip_zero_advantage: bool = False
    updates_per_batch: int = 1
    bounded_ratio: bool = True
    depth: int = 0
    corrects_mismatch: bool = False
    mismatch_weight: str = ""


def policy_identity(facts: IdentityFacts) -> tuple[PolicyIdentity, ...]:
    """One row per optimisation, on or off, in the order in which data meets them."""
    return (*_sampling_rows(facts), *_data_rows(facts), *_training_rows(facts))


def _sampling_rows(facts: IdentityFacts) -> list[PolicyIdentity]:
    cast = facts.compute_dtype != facts.master_dtype
    mismatch = "the ratio's denominator is the sampler's log-prob" if facts.corrects_mismatch else ""
    if facts.mismatch_weight:
        mismatch = f"policy.correction: {facts.mismatch_weight} weights of trainer over sampler"
    measured = mismatch or "nothing; logprobs/mismatch_* measure it every step"
    return [
        PolicyIdentity(
            "continuous batching: rows join and leave while others are decoded",
            on=True,
            sampled_by=_CURRENT if facts.exact_batching else f"{_CURRENT}, up to the rounding of the batch shape",
            logprob_trusted=True,
            same_objective=True,
            corrected_by="" if facts.exact_batching else measured,
        ),
        PolicyIdentity(
            "shared prompt: keys and values of a group's prompt are computed once for sampling",
            on=facts.shared_prompt_sampling,
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
        PolicyIdentity(
            f"cast copy: the engine holds the {facts.master_dtype} weights as {facts.compute_dtype}",
            on=cast,
            sampled_by="the weights as cast; the trainer computes with the same cast" if cast else _CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by=measured if cast else "",
        ),
        PolicyIdentity(
            "LoRA merge: the engine samples from weights with the adapter added in",
            on=facts.lora,
            sampled_by=f"the merged weights rounded to {facts.compute_dtype}; the trainer adds the adapter unmerged"
            if facts.lora
            else _CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by=measured if facts.lora else "",
        ),
        PolicyIdentity(
            f"temperature {facts.temperature:g}",
            on=facts.temperature != 1.0,
            sampled_by="the tempered policy" if facts.temperature != 1.0 else _CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by="log-probs of sampler and trainer are both of the tempered distribution"
            if facts.temperature != 1.0
            else "",
        ),
        PolicyIdentity(
            f"asynchronous sampling, {facts.depth} batches ahead",
            on=facts.depth > 0,
            sampled_by="earlier versions of the policy" if facts.depth else _CURRENT,
            logprob_trusted=True,
            same_objective=not facts.depth or facts.corrects_mismatch,
            corrected_by=mismatch if facts.depth else "",
        ),
    ]


def _data_rows(facts: IdentityFacts) -> list[PolicyIdentity]:
    return [
        PolicyIdentity(
            f"group filter (dynamic sampling): {facts.group_filter or 'none'}",
            on=bool(facts.group_filter),
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=not facts.group_filter,
            corrected_by="nothing, on purpose: tasks are weighted by their chance to give a mixed group"
            if facts.group_filter
            else "",
        ),
        PolicyIdentity(
            "overlong filter: attempts cut at the budget are not trained",
            on=facts.overlong_filter,
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=not facts.overlong_filter,
            corrected_by="nothing, on purpose: the objective is reward given that the attempt ends in time"
            if facts.overlong_filter
            else "",
        ),
        PolicyIdentity(
            "soft overlong penalty: length near the budget costs reward",
            on=facts.soft_overlong,
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=not facts.soft_overlong,
            corrected_by="nothing, on purpose: the reward includes the penalty" if facts.soft_overlong else "",
        ),
        PolicyIdentity(
            "sequences with advantage 0 get no backward pass",
            on=facts.skip_zero_advantage,
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by="nothing has to: their gradient is exactly 0, and they are scored and counted like all others"
            if facts.skip_zero_advantage
            else "",
        ),
    ]


def _training_rows(facts: IdentityFacts) -> list[PolicyIdentity]:
    several = facts.updates_per_batch > 1
    return [
        PolicyIdentity(
            "shared prompt: a group's prompt is computed once for training",
            on=facts.shared_prompt_training,
            sampled_by=_CURRENT,
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
        PolicyIdentity(
            f"{facts.updates_per_batch} updates on each batch",
            on=several,
            sampled_by="the policy before the first of them" if several else _CURRENT,
            logprob_trusted=True,
            same_objective=not several or facts.bounded_ratio,
            corrected_by="ratio to the log-probs before the first update, inside policy.trust_region"
            if several and facts.bounded_ratio
            else "",
        ),
    ]

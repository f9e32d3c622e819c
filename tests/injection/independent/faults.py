"""What can go wrong: each fault changes the conditions of a run from its onset on, at one of three magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.injection.independent.tasks import Task


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything about a step that a fault may change. The values here are harmless."""

    learning_rate: float = 1e-3
    updates_per_batch: int = 1
    clipped: bool = True
    beta: float = 0.0
    entropy_bonus: float = 0.0
    frozen_share: float = 0.0  # of the parameter tensors
    infinite_gradient_every: int = 0  # the step is skipped; 0: never
    poisoned: bool = False  # an infinite gradient is applied, once
    hard_share: float = 0.0  # of prompts
    easy_share: float = 0.0
    rejected_share: float = 0.0  # of prompts, all of whose replies the grader fails
    accepted_share: float = 0.0  # of prompts, all of whose replies the grader passes
    flipped_share: float = 0.0  # of replies, whose grade is turned round
    shortcut_pay: float = 0.0  # added for a reply with the shortcut token
    length_pay: float = 0.0  # added for a reply at the cap, in proportion for a shorter one
    completion_cap: int = 12
    sampler_temperature: float = 1.0
    sync_every: int = 1  # steps between weight loads of the engine; 0: none any more
    engine_bits: int = 0  # 0: as trained
    copies: int = 1  # group members that share their random numbers
    lag: int = 0  # steps a batch waits before it is trained on


Change = Callable[[Conditions, Task], Conditions]


@dataclass(frozen=True, slots=True)
class Fault:
    """A cause, where it is, where it shows, and what each magnitude of it changes, the weakest first."""

    name: str
    cause: str
    cause_layer: str
    symptom_layer: str
    signals: tuple[str, ...]
    levels: tuple[Change, ...]
    expected: str = "finding"  # or "info": worth saying, nothing is broken


def setting(**values: object) -> Change:
    """A change of these conditions."""
    return lambda c, _: replace(c, **values)  # type: ignore[arg-type]


def rate_times(factor: float) -> Change:
    """The learning rate times a factor."""
    return lambda c, _: replace(c, learning_rate=c.learning_rate * factor)


def cap_of(of: Callable[[int], int]) -> Change:
    """A cap on reply length that depends on the digits of the longest answer."""
    return lambda c, task: replace(c, completion_cap=of(task.longest_answer))


ENVIRONMENT, POLICY, LOGPROBS, ROLLOUT, PARALLEL, SCHEDULE = (
    "environment",
    "policy",
    "logprobs",
    "rollout",
    "parallel",
    "schedule",
)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "hackable_reward",
            "the reward pays for a token that has nothing to do with the task",
            ENVIRONMENT,
            ENVIRONMENT,
            ("reward", "eval_reward"),
            (setting(shortcut_pay=0.5), setting(shortcut_pay=1.0), setting(shortcut_pay=2.0)),
        ),
        Fault(
            "length_hack",
            "the reward pays for length",
            ENVIRONMENT,
            POLICY,
            ("completions/mean_length", "reward", "eval_reward"),
            (setting(length_pay=0.5), setting(length_pay=1.0), setting(length_pay=2.0)),
        ),
        Fault(
            "grader_rejects_all",
            "the grader fails every reply to some prompts, as one that crashes and is read as 0",
            ENVIRONMENT,
            ENVIRONMENT,
            ("reward", "frac_reward_zero_std", "eval_reward"),
            (setting(rejected_share=0.35), setting(rejected_share=0.7), setting(rejected_share=1.0)),
        ),
        Fault(
            "grader_accepts_all",
            "the grader passes every reply to some prompts",
            ENVIRONMENT,
            ENVIRONMENT,
            ("reward", "frac_reward_zero_std", "eval_reward"),
            (setting(accepted_share=0.35), setting(accepted_share=0.7), setting(accepted_share=1.0)),
        ),
        Fault(
            "noisy_grader",
            "the grader turns the grade of some replies round at random",
            ENVIRONMENT,
            ENVIRONMENT,
            ("reward", "eval_reward"),
            (setting(flipped_share=0.15), setting(flipped_share=0.3), setting(flipped_share=0.5)),
        ),
        Fault(
            "tasks_too_hard",
            "tasks far above what the policy can do, so that groups have no success",
            ENVIRONMENT,
            POLICY,
            ("reward", "frac_reward_zero_std"),
            (setting(hard_share=0.5), setting(hard_share=0.8), setting(hard_share=1.0)),
        ),
        Fault(
            "saturation",
            "tasks the policy always solves, so that there is nothing to learn from",
            ENVIRONMENT,
            POLICY,
            ("reward", "frac_reward_zero_std"),
            (setting(easy_share=0.5), setting(easy_share=0.8), setting(easy_share=1.0)),
            expected="info",
        ),
        Fault(
            "learning_rate_too_high",
            "the learning rate is too high",
            POLICY,
            POLICY,
            ("grad_norm", "entropy", "kl", "reward", "learning_rate"),
            (rate_times(10), rate_times(40), rate_times(200)),
        ),
        Fault(
            "learning_rate_too_low",
            "the learning rate is too low",
            POLICY,
            POLICY,
            ("reward", "learning_rate"),
            (rate_times(0.1), rate_times(0.02), rate_times(0.001)),
        ),
        Fault(
            "kl_anchor_too_strong",
            "the penalty on distance from the reference outweighs the reward",
            POLICY,
            POLICY,
            ("kl", "reward", "loss"),
            (setting(beta=0.3), setting(beta=2.0), setting(beta=20.0)),
        ),
        Fault(
            "entropy_collapse",
            "the entropy term has the wrong sign and pays for certainty",
            POLICY,
            POLICY,
            ("entropy", "reward", "frac_reward_zero_std"),
            (setting(entropy_bonus=-0.1), setting(entropy_bonus=-0.5), setting(entropy_bonus=-3.0)),
        ),
        Fault(
            "entropy_explosion",
            "the entropy bonus outweighs the reward",
            POLICY,
            POLICY,
            ("entropy", "reward"),
            (setting(entropy_bonus=0.05), setting(entropy_bonus=0.25), setting(entropy_bonus=1.0)),
        ),
        Fault(
            "frozen_parameters",
            "parameters take no part in training",
            POLICY,
            POLICY,
            ("grad_norm", "reward"),
            (setting(frozen_share=0.5), setting(frozen_share=0.9), setting(frozen_share=1.0)),
        ),
        Fault(
            "non_finite_gradient",
            "the gradient is not finite",
            POLICY,
            POLICY,
            ("grad_norm",),
            (setting(infinite_gradient_every=25), setting(infinite_gradient_every=4), setting(poisoned=True)),
        ),
        Fault(
            "batch_reuse",
            "many updates on each batch, without a clip",
            SCHEDULE,
            POLICY,
            ("entropy", "kl", "grad_norm", "reward"),
            (
                setting(updates_per_batch=4, clipped=False),
                setting(updates_per_batch=12, clipped=False),
                setting(updates_per_batch=30, clipped=False),
            ),
        ),
        Fault(
            "stale_batches",
            "batches wait many steps before they are trained on, without correction",
            SCHEDULE,
            LOGPROBS,
            ("sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean", "reward"),
            (setting(lag=3), setting(lag=10), setting(lag=25)),
        ),
        Fault(
            "sampler_temperature",
            "the sampler's temperature is not known to the trainer",
            LOGPROBS,
            LOGPROBS,
            ("sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"),
            (setting(sampler_temperature=0.85), setting(sampler_temperature=0.7), setting(sampler_temperature=0.5)),
        ),
        Fault(
            "stale_weights",
            "the engine keeps old weights",
            ROLLOUT,
            LOGPROBS,
            ("sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean", "reward"),
            (setting(sync_every=5), setting(sync_every=20), setting(sync_every=0)),
        ),
        Fault(
            "same_seed_in_group",
            "members of a group share their random numbers",
            ROLLOUT,
            POLICY,
            ("frac_reward_zero_std", "entropy", "reward"),
            (setting(copies=2), setting(copies=4), setting(copies=8)),
        ),
        Fault(
            "truncation_cap",
            "the limit on reply length is too short for an answer",
            ROLLOUT,
            ROLLOUT,
            ("completions/clipped_ratio", "completions/mean_length", "reward"),
            (cap_of(lambda n: n + 3), cap_of(lambda n: n + 1), cap_of(lambda n: (n + 1) // 2)),
        ),
        Fault(
            "quantised_sampler",
            "the engine's weights are rounded to few bits, without correction",
            PARALLEL,
            LOGPROBS,
            ("sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"),
            (setting(engine_bits=6), setting(engine_bits=4), setting(engine_bits=3)),
        ),
    )
}

"""Combinations that are refused before anything is loaded, one function for each."""

from __future__ import annotations

import re
from collections.abc import Callable

from posttrain.errors import InputError
from posttrain.settings.chosen import anchor_weights, chosen_objective
from posttrain.settings.environments import FunctionSettings, reward_kind_of
from posttrain.settings.objective import Need, ObjectiveSpec
from posttrain.settings.teacher import SELF
from posttrain.settings.tree import Acknowledgement, Settings

SMALLEST_BFLOAT16_RATE = 2.0**-14
"""Half the distance between bfloat16 numbers near 0.02, the size of a typical weight: smaller steps round away."""

MOST_ATTEMPTS = 2**20
"""Attempts of one batch. Large runs use ten thousand; far beyond, their bookkeeping alone fills a machine."""


def check_settings(settings: Settings) -> ObjectiveSpec:
    """Apply every rule; returns the objective the run will use. Raises InputError for the first one broken."""
    spec = chosen_objective(settings.policy)
    for rule in RULES:
        rule(settings, spec)
    return spec


def environment_names(settings: Settings, spec: ObjectiveSpec) -> None:
    """Names of environments: letters, digits, `_`, `-` and `.` inside, because they become parts of file names."""
    for name in settings.environments:
        # A dot or hyphen at an end is lost in a file name, so that two environments could share one.
        if len(name) > 100 or not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", name):
            raise InputError(
                f"environments.{name[:100]}",
                name[:100],
                "is no usable name: it becomes part of file names",
                "Use at most 100 letters, digits and '_', with '-' and '.' between them.",
            )


def batch_is_countable(settings: Settings, spec: ObjectiveSpec) -> None:
    """`rollout.prompts_per_step` x `rollout.group_size` beyond a million attempts: too many for one process."""
    size = settings.rollout.group_size * settings.rollout.prompts_per_step
    if size > MOST_ATTEMPTS:
        larger = max(("group_size", "prompts_per_step"), key=lambda name: getattr(settings.rollout, name))
        raise InputError(
            f"rollout.{larger}",
            getattr(settings.rollout, larger),
            f"a batch of {size:,} attempts does not fit into one process",
            f"Keep rollout.prompts_per_step x rollout.group_size at most {MOST_ATTEMPTS:,}.",
        )


def baseline_needs_a_group(settings: Settings, spec: ObjectiveSpec) -> None:
    """`rollout.group_size = 1` with a group baseline or a group filter: every advantage would be 0."""
    if Need.GROUP in spec.needs and settings.rollout.group_size < 2:
        cause = (
            f"policy.advantage.baseline = {spec.advantage.baseline!r}"
            if spec.advantage.compares_attempts
            else f"policy.group_filter.rule = {spec.group_filter.rule!r}"
        )
        raise InputError(
            "rollout.group_size",
            settings.rollout.group_size,
            f"{cause} compares attempts of one group",
            "Set it to 2 or more (8 is usual), or use policy.algorithm = 'reinforce'.",
        )


def sampled_distribution_is_trained(settings: Settings, spec: ObjectiveSpec) -> None:
    """`rollout.top_p` below 1 or `rollout.top_k` above 0: the trainer would score another distribution."""
    fix = "Set rollout.top_p = 1.0 and rollout.top_k = 0; evaluation is not affected."
    problem = "the trainer does not replay the sampler's mask, so its log-probs would be of another distribution"
    if settings.rollout.top_p != 1.0:
        raise InputError("rollout.top_p", settings.rollout.top_p, problem, fix)
    if settings.rollout.top_k != 0:
        raise InputError("rollout.top_k", settings.rollout.top_k, problem, fix)


def training_is_not_greedy(settings: Settings, spec: ObjectiveSpec) -> None:
    """`rollout.temperature = 0`: greedy attempts at one prompt are all equal."""
    if settings.rollout.temperature == 0.0:
        raise InputError(
            "rollout.temperature",
            0.0,
            "greedy attempts are all the same, so there is nothing to learn from",
            "Set it to 1.0; evaluation.greedy evaluates greedy decoding.",
        )


def updates_do_not_round_away(settings: Settings, spec: ObjectiveSpec) -> None:
    """`model.master_dtype = "bfloat16"` with a learning rate so low that AdamW's steps round away."""
    if settings.model.master_dtype == "bfloat16" and settings.policy.learning_rate < SMALLEST_BFLOAT16_RATE:
        raise InputError(
            "policy.learning_rate",
            settings.policy.learning_rate,
            f"with model.master_dtype = 'bfloat16' a step below {SMALLEST_BFLOAT16_RATE:.1e} rounds away "
            "at a weight of 0.02",
            'Set model.master_dtype = "float32".',
        )


def one_update_without_ratio(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.updates_per_batch` above 1 without a ratio: the second update would be off-policy and uncorrected."""
    if Need.SINGLE_UPDATE in spec.needs and settings.policy.updates_per_batch > 1:
        raise InputError(
            "policy.updates_per_batch",
            settings.policy.updates_per_batch,
            f"policy.algorithm = {settings.policy.algorithm!r} has no ratio to correct a second update",
            "Set it to 1, or use an algorithm with a ratio, such as grpo.",
        )


def every_update_gets_a_group(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.updates_per_batch` above `rollout.prompts_per_step`: some update would have no group."""
    updates, prompts = settings.policy.updates_per_batch, settings.rollout.prompts_per_step
    if updates > prompts:
        raise InputError(
            "policy.updates_per_batch",
            updates,
            f"a batch has only rollout.prompts_per_step = {prompts} groups",
            f"Set it to at most {prompts}.",
        )


def warmup_ends(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.warmup_steps` beyond the run: the learning rate asked for would never be reached."""
    updates = settings.run.steps * settings.policy.updates_per_batch
    if settings.policy.warmup_steps > updates:
        raise InputError(
            "policy.warmup_steps",
            settings.policy.warmup_steps,
            f"the run has only {updates} optimizer steps",
            f"Set it to at most {updates}, or raise run.steps.",
        )


def micro_batch_holds_a_completion(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.micro_batch_tokens` below prompt and completion: a sequence is never split."""
    micro, new = settings.policy.micro_batch_tokens, settings.rollout.max_new_tokens
    if micro != "auto" and new != "auto" and micro <= new:
        raise InputError(
            "policy.micro_batch_tokens",
            micro,
            f"a sequence is never split, and rollout.max_new_tokens = {new} comes on top of the prompt",
            f'Set it well above {new}, or to "auto".',
        )


def overlong_fits_the_budget(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.overlong.buffer_tokens` above `rollout.max_new_tokens`."""
    buffer, new = spec.overlong.buffer_tokens, settings.rollout.max_new_tokens
    if spec.overlong.soft_penalty and buffer is not None and new != "auto" and buffer > new:
        raise InputError(
            "policy.overlong.buffer_tokens",
            buffer,
            f"the slope is longer than rollout.max_new_tokens = {new}",
            f"Set it to at most {new}; a fifth of it is usual.",
        )


def parts_have_an_environment(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.advantage.combine = "parts"` without exactly one environment of several reward functions."""
    if Need.REWARD_PARTS not in spec.needs:
        return
    only = next(iter(settings.environments.values())) if len(settings.environments) == 1 else None
    if not isinstance(only, FunctionSettings) or isinstance(only.reward, str) or len(only.reward) < 2:
        raise InputError(
            "policy.advantage.combine",
            "parts",
            "needs one environment of kind 'function' with at least 2 reward functions",
            "List them in environments.NAME.reward, or use policy.algorithm = 'grpo'.",
        )


def k_fits_the_group(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.advantage.k` above `rollout.group_size`: pass@k of fewer attempts is not defined."""
    if spec.advantage.baseline == "pass_at_k" and spec.advantage.k > settings.rollout.group_size:
        raise InputError(
            "policy.advantage.k",
            spec.advantage.k,
            f"pass@k needs k attempts and rollout.group_size = {settings.rollout.group_size}",
            "Set it well below the group size, or raise rollout.group_size.",
        )


def target_can_be_measured(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.trust_region.kl_target` with one update per batch: the divergence is 0 whenever it is measured."""
    region = spec.trust_region
    if region.kind == "kl_penalty" and region.kl_target is not None and settings.policy.updates_per_batch < 2:
        raise InputError(
            "policy.updates_per_batch",
            settings.policy.updates_per_batch,
            "policy.trust_region.kl_target adapts to the divergence of later updates from the first",
            "Set it to 2 or more.",
        )


def refills_have_a_rule(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.group_filter.max_refills` above 0 without a rule: no group would be dropped, so none replaced."""
    if spec.group_filter.max_refills > 0 and spec.group_filter.rule == "none":
        raise InputError(
            "policy.group_filter.max_refills",
            spec.group_filter.max_refills,
            "no group is dropped while policy.group_filter.rule = 'none'",
            "Set policy.group_filter.rule = 'mixed_success', or max_refills = 0.",
        )


def critic_warms_up_before_the_end(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.critic.warmup_steps` as long as the run: the policy would never be trained."""
    warmup = spec.critic.warmup_steps
    if Need.CRITIC in spec.needs and warmup >= settings.run.steps:
        raise InputError(
            "policy.critic.warmup_steps",
            warmup,
            f"the run has only {settings.run.steps} steps, so the policy would never move",
            "Set it well below run.steps.",
        )


def soft_reward_is_anchored(settings: Settings, spec: ObjectiveSpec) -> None:
    """A soft reward with anchor weight 0, unless `policy.acknowledge` names `soft_reward_without_anchor`."""
    if "soft_reward_without_anchor" in settings.policy.acknowledge or spec.distillation.reward_weight == 0.0:
        return
    for name, weight in anchor_weights(settings).items():
        if weight == 0.0 and reward_kind_of(settings.environments[name]) == "soft":
            checked = isinstance(settings.environments[name], FunctionSettings)
            relabel = ', or reward_kind = "verifiable" if the function checks a fact' if checked else ""
            raise InputError(
                f"environments.{name}.{'reward_kind' if checked else 'kind'}",
                "soft" if checked else settings.environments[name].kind,
                "a soft reward with anchor weight 0 can be farmed without bound",
                f"Set environments.{name}.anchor.weight (0.01 is a start){relabel}, "
                'or policy.acknowledge = ["soft_reward_without_anchor"].',
            )


def anchor_has_a_gradient(settings: Settings, spec: ObjectiveSpec) -> None:
    """An anchor by k1 in the loss or k3 in the reward, which miss the gradient of the KL, or by k2 over several
    updates, which does so after the first, unless acknowledged."""
    pair: Acknowledgement | None = spec.anchor.biased_pair
    if spec.anchor.place == "loss" and spec.anchor.estimator == "k2" and settings.policy.updates_per_batch > 1:
        pair = "k2_off_policy"
    anchored = any(weight > 0 for weight in anchor_weights(settings).values())
    if pair is None or not anchored or pair in settings.policy.acknowledge:
        return
    problem = {
        "k1_in_loss": "the expected gradient of k1 in the loss is 0: it adds noise and no anchor",
        "k3_in_reward": "k3 in the reward has almost no gradient near the reference",
        "k2_off_policy": "k2 has the KL's gradient on the policy's own samples alone, and after the first of "
        f"policy.updates_per_batch = {settings.policy.updates_per_batch} updates they are an older policy's",
    }[pair]
    raise InputError(
        "policy.anchor.estimator",
        spec.anchor.estimator,
        f"with place = {spec.anchor.place!r} {problem}",
        f'Use k3_corrected or full_vocabulary in the loss, or k1 in the reward; or policy.acknowledge = ["{pair}"].',
    )


def anchors_gradient_can_be_told(settings: Settings, spec: ObjectiveSpec) -> None:
    """`policy.anchor.gradient_every` with a critic and the anchor in the reward: it is inside the values by then."""
    anchor = spec.anchor
    if anchor.gradient_every and anchor.place == "reward" and Need.CRITIC in spec.needs:
        raise InputError(
            "policy.anchor.gradient_every",
            anchor.gradient_every,
            "with the anchor in the reward of a critic its part of the gradient is inside the learnt values",
            "Set it to 0, or policy.anchor.place = 'loss'.",
        )


def distillation_has_a_teacher(settings: Settings, spec: ObjectiveSpec) -> None:
    """A row that distills without `[teacher]`, a `[teacher]` without such a row, and `self` without a prompt of its
    own, where teacher and student are one."""
    teacher = settings.teacher
    if Need.TEACHER in spec.needs and teacher is None:
        raise InputError(
            "teacher.path",
            None,
            f"policy.algorithm = {settings.policy.algorithm!r} learns from a teacher",
            'Set it to the teacher\'s model, or to "self" with teacher.prompt.',
        )
    if teacher is None:
        return
    if Need.TEACHER not in spec.needs:
        raise InputError(
            "teacher.path",
            teacher.path,
            f"policy.algorithm = {settings.policy.algorithm!r} gives it no weight, so it would do nothing",
            'Use policy.algorithm = "on_policy_distillation", or set policy.distillation.weight.',
        )
    if teacher.path == SELF and teacher.prompt is None:
        raise InputError(
            "teacher.prompt",
            None,
            "a policy that reads what it reads itself as student has nothing to teach",
            'Give the teacher more, for instance "{prompt} (The answer is {gold}.)".',
        )


def evaluation_has_enough_samples(settings: Settings, spec: ObjectiveSpec) -> None:
    """`evaluation.k` above `evaluation.samples`: pass@k of fewer than k samples is not defined."""
    largest, samples = max(settings.evaluation.k), settings.evaluation.samples
    if largest > samples:
        raise InputError(
            "evaluation.k",
            list(settings.evaluation.k),
            f"pass@{largest} needs {largest} samples a task and evaluation.samples = {samples}",
            f"Raise evaluation.samples to {largest}, or drop k above {samples}.",
        )


def each_reward_has_its_weight(settings: Settings, spec: ObjectiveSpec) -> None:
    """`reward_weights` of another length than `reward`."""
    for name, environment in settings.environments.items():
        if not isinstance(environment, FunctionSettings) or environment.reward_weights is None:
            continue
        functions = 1 if isinstance(environment.reward, str) else len(environment.reward)
        if functions != len(environment.reward_weights):
            raise InputError(
                f"environments.{name}.reward_weights",
                list(environment.reward_weights),
                f"there are {functions} reward functions",
                f"Give {functions} weights.",
            )


RULES: tuple[Callable[[Settings, ObjectiveSpec], None], ...] = (
    environment_names,
    batch_is_countable,
    baseline_needs_a_group,
    sampled_distribution_is_trained,
    training_is_not_greedy,
    updates_do_not_round_away,
    one_update_without_ratio,
    every_update_gets_a_group,
    warmup_ends,
    micro_batch_holds_a_completion,
    overlong_fits_the_budget,
    parts_have_an_environment,
    k_fits_the_group,
    target_can_be_measured,
    refills_have_a_rule,
    critic_warms_up_before_the_end,
    soft_reward_is_anchored,
    anchor_has_a_gradient,
    anchors_gradient_can_be_told,
    distillation_has_a_teacher,
    evaluation_has_enough_samples,
    each_reward_has_its_weight,
)
"""In the order in which they are checked."""

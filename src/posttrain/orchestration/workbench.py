"""Everything a run works with, built from its settings in one order: facts, tasks, sizes, model, engine, trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.environment.build import build_environments
from posttrain.environment.grading import GradedTasks
from posttrain.environment.mixture import check_tasks
from posttrain.errors import InputError
from posttrain.model.forward import check_packed_forward
from posttrain.model.head import HeadSettings
from posttrain.model.load import LoadedModel, ModelFacts, inspect_model
from posttrain.model.runtime import probe_machine, set_threads, tune_allocator
from posttrain.model.weights import WeightSet
from posttrain.orchestration.accounting import MemoryItem, ModelCopies, account
from posttrain.orchestration.critic import critic_optimizer
from posttrain.orchestration.loading import (
    PAIRS_PER_TOKEN,
    attach_adapters,
    load_prepared,
    optimizer_settings,
    tokenizer_of,
)
from posttrain.orchestration.reward_scorer import reward_scorers
from posttrain.orchestration.teacher import TaughtBy, build_teacher, inspect_teacher, load_frozen
from posttrain.policy.critic import Critic
from posttrain.policy.masters import OptimizerSettings
from posttrain.policy.reference import Reference
from posttrain.policy.trainer import Trainer
from posttrain.policy.update import UpdatePlan
from posttrain.rollout.native.engine import NativeEngine, NativeSettings
from posttrain.rollout.turns import Turns
from posttrain.settings import Settings
from posttrain.settings.chosen import (
    anchor_weights,
    chosen_objective,
    has_own_critic,
    holds_average,
    holds_reference,
    needs_reference,
)
from posttrain.settings.objective import Need, ObjectiveSpec
from posttrain.settings.resolve import MIB, Resolved, resolve_machine, resolve_sizes
from posttrain.trajectory import Task


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is known before weights are loaded. ``resolved`` has no ``auto`` left; ``memory`` is per model copy,
    empty where nothing is trained."""

    resolved: Resolved
    facts: ModelFacts
    teacher_facts: ModelFacts | None
    environments: Sequence[GradedTasks]
    memory: tuple[MemoryItem, ...]
    allocator: str

    @property
    def settings(self) -> Settings:
        """The settings themselves."""
        return self.resolved.settings


@dataclass(frozen=True, slots=True)
class SamplingBench:
    """What sampling and grading need: no trainer, no optimizer, no copy of the weights but the engine's."""

    preparation: Preparation
    environments: Mapping[str, GradedTasks]
    turns: Turns
    engine: NativeEngine

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.preparation.settings

    def close(self) -> None:
        """Stop grading processes and free the engine."""
        for environment in self.environments.values():
            environment.close()
        self.engine.close()


@dataclass(frozen=True, slots=True)
class Workbench(SamplingBench):
    """The parts of a run. ``reference`` is absent where nothing is anchored, ``teacher`` where nobody teaches,
    ``critic`` where the baseline is not one."""

    loaded: LoadedModel
    trainer: Trainer
    reference: Reference | None
    teacher: TaughtBy | None
    critic: Critic | None
    spec: ObjectiveSpec
    plan: UpdatePlan
    anchors: Mapping[str, float]
    forward_gap: float


def prepare(settings: Settings, resolved: Resolved | None = None, *, sampling_only: bool = False) -> Preparation:
    """Probe machine, model facts and tasks, and decide every ``auto``. Nothing is written and no weights are loaded.

    ``resolved`` of an earlier process is taken as it is, so that a resumed run computes the same numbers. With
    ``sampling_only`` the memory of training is not asked for.
    """
    allocator = tune_allocator()
    machine = probe_machine()
    plan, choices = (resolved.machine, ()) if resolved else resolve_machine(settings, machine)
    set_threads(plan.threads)
    facts = inspect_model(settings.model.path, tokenizer=settings.model.tokenizer, lora=settings.model.lora)
    teacher_facts = None if sampling_only else inspect_teacher(settings, facts)
    environments = build_environments(settings.environments, reward_scorers(plan.device))
    machine = probe_machine()  # reward models are loaded by now, and what they hold is not free
    try:
        check_tasks(environments)
        if resolved is None:
            longest = _longest_prompt(settings, facts, environments)
            sizes, more = resolve_sizes(
                settings,
                plan,
                machine,
                facts,
                longest,
                facts.trainable_parameters,
                sampling_only=sampling_only,
                teacher_parameters=teacher_facts.parameters if teacher_facts else 0,
            )
            resolved = Resolved(settings, plan, sizes, (*choices, *more))
    except BaseException:
        for environment in environments:
            environment.close()
        raise
    memory = () if sampling_only else _memory(resolved, facts, teacher_facts)
    return Preparation(resolved, facts, teacher_facts, environments, memory, allocator)


def _longest_prompt(settings: Settings, facts: ModelFacts, environments: Sequence[GradedTasks]) -> int:
    turns = Turns(tokenizer_of(settings), settings.rollout.system_prompt, context_length=facts.context_length)
    tasks: list[Task] = []
    for environment in environments:
        split = environment.tasks()
        tasks += [*split.train, *split.evaluation[: settings.evaluation.max_tasks]]
    return max(len(turns.prompt_ids(task)) for task in tasks)


def _memory(resolved: Resolved, facts: ModelFacts, teacher: ModelFacts | None) -> tuple[MemoryItem, ...]:
    settings = resolved.settings
    packed_head = facts.tied and resolved.machine.compute_dtype == "bfloat16" and resolved.machine.device == "cpu"
    return account(
        ModelCopies(
            parameters=facts.parameters,
            trainable=facts.trainable_parameters,
            master_dtype=settings.model.master_dtype,
            compute_dtype=resolved.machine.compute_dtype,
            reference=holds_reference(settings),
            average=holds_average(settings),
            critic=has_own_critic(settings),
            unused_head=0 if facts.tied else facts.vocabulary * facts.hidden,
            teacher_parameters=teacher.parameters if teacher else 0,
            engine_copy=True,
            kv_bytes=resolved.sizes.kv_memory_mb * MIB,
            head_parameters=facts.vocabulary * facts.hidden if packed_head else 0,
        )
    )


def build_sampling(preparation: Preparation) -> SamplingBench:
    """Load the model into the engine, as policy version 0, and keep no other copy of it."""
    loaded = load_prepared(preparation.settings, preparation.resolved.machine)
    model: Any = loaded.model
    check_packed_forward(model)
    engine = build_engine(preparation, model)
    engine.load_weights(WeightSet.of(0, {name: p.detach() for name, p in model.named_parameters()}))
    return SamplingBench(preparation, _by_name(preparation), _turns(preparation, loaded), engine)


def build(preparation: Preparation) -> Workbench:
    """Load the model and build engine and trainer."""
    settings, sizes, machine = preparation.settings, preparation.resolved.sizes, preparation.resolved.machine
    loaded = load_prepared(settings, machine)
    model: Any = loaded.model
    gap = check_packed_forward(model)
    engine = build_engine(preparation, model)
    lora = attach_adapters(settings, model)
    head = HeadSettings(sizes.head_chunk_tokens, sizes.keep_logits_mb * MIB)
    temperature = settings.rollout.temperature
    spec = chosen_objective(settings.policy).for_generation_budget(sizes.max_new_tokens)
    other = None
    if needs_reference(settings) and spec.anchor.from_path:
        name = "policy.anchor.reference"
        other = load_frozen(name, spec.anchor.reference, machine, loaded, settings.run.seed).model
    reference = Reference(model, lora, temperature, head, spec.anchor, other) if needs_reference(settings) else None
    critic = _critic(settings, model, spec)
    trainer = Trainer(
        model,
        _optimizer(settings),
        head,
        temperature,
        master_dtype=getattr(torch, settings.model.master_dtype),
        lora=lora,
        checkpointing=settings.model.gradient_checkpointing,
        with_entropy=settings.logprobs.entropy,
    )
    turns = _turns(preparation, loaded)
    return Workbench(
        preparation=preparation,
        environments=_by_name(preparation),
        turns=turns,
        loaded=loaded,
        engine=engine,
        trainer=trainer,
        reference=reference,
        teacher=build_teacher(settings, machine, loaded, turns, head),
        critic=critic,
        spec=spec,
        plan=UpdatePlan(
            settings.policy.updates_per_batch,
            sizes.micro_batch_tokens,
            sizes.micro_batch_tokens * PAIRS_PER_TOKEN,
            settings.policy.skip_zero_advantage,
            seed=settings.run.seed,
        ),
        anchors=anchor_weights(settings),
        forward_gap=gap,
    )


def build_engine(preparation: Preparation, model: Any, context_length: int | None = None) -> NativeEngine:
    """An engine for a model of the run, of the policy's context length unless another is given."""
    sizes = preparation.resolved.sizes
    limits = NativeSettings(
        context_length or preparation.facts.context_length, sizes.kv_memory_mb * MIB, sizes.max_running
    )
    return NativeEngine(model, getattr(torch, preparation.resolved.machine.compute_dtype), limits)


def _turns(preparation: Preparation, loaded: LoadedModel) -> Turns:
    system_prompt = preparation.settings.rollout.system_prompt
    return Turns.of(loaded, system_prompt, max_new_tokens=preparation.resolved.sizes.max_new_tokens)


def _by_name(preparation: Preparation) -> dict[str, GradedTasks]:
    return {environment.name: environment for environment in preparation.environments}


def _critic(settings: Settings, model: Any, spec: ObjectiveSpec) -> Critic | None:
    """The critic, copied from the model before anything has trained it."""
    if Need.CRITIC not in spec.needs:
        return None
    optimizer = critic_optimizer(_optimizer(settings), spec, settings.run.steps, settings.policy.updates_per_batch)
    return Critic(model, spec.critic, optimizer, checkpointing=settings.model.gradient_checkpointing)


def _optimizer(settings: Settings) -> OptimizerSettings:
    policy = settings.policy
    return optimizer_settings(settings, policy.learning_rate, settings.run.steps * policy.updates_per_batch)


def check_held_out(preparation: Preparation) -> None:
    """Raise InputError if evaluation is asked for and no environment holds tasks out."""
    wanted = preparation.settings.evaluation
    if not (wanted.at_start or wanted.at_end or wanted.every):
        return
    if not any(e.tasks().evaluation for e in preparation.environments):
        names = ", ".join(e.name for e in preparation.environments)
        raise InputError(
            "evaluation",
            names,
            "no environment holds tasks out, so nothing can be evaluated",
            "Hold tasks out in the environment, or set evaluation.at_start, at_end to false and every to 0.",
        )

"""Everything a run on fixed data works with, built in one order: facts, rows, sizes, model, trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posttrain.model.forward import check_packed_forward
from posttrain.model.head import HeadSettings
from posttrain.model.load import LoadedModel, ModelFacts, inspect_model
from posttrain.model.packing import Block, TrainSequence
from posttrain.model.reward_head import attach_reward_head
from posttrain.model.runtime import probe_machine, set_threads, tune_allocator
from posttrain.orchestration.accounting import MemoryItem, ModelCopies, account
from posttrain.orchestration.fixed_data.batch import Array, FixedBatch, mismatched_units
from posttrain.orchestration.fixed_data.dataset import Example, FixedData, load_data
from posttrain.orchestration.fixed_data.methods import Method, method_of
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.orchestration.loading import (
    PAIRS_PER_TOKEN,
    attach_adapters,
    load_prepared,
    optimizer_settings,
    tokenizer_of,
)
from posttrain.policy.fixed_update import plan_units, score_rows, summed_logprobs
from posttrain.policy.trainer import Trainer
from posttrain.settings.fixed import FixedSettings, chosen_part
from posttrain.settings.parts.supervised import RewardModelling
from posttrain.settings.resolve import MIB, resolve_machine
from posttrain.settings.resolve_fixed import FixedResolved, resolve_fixed_sizes

_SAMPLING = ("engine weights", "reference weights", "keys and values")
"""Blocks of memory that only a run which samples has."""


@dataclass(frozen=True, slots=True)
class FixedPreparation:
    """What is known before weights are loaded. ``resolved`` has no ``auto`` left; ``memory`` is per model copy."""

    resolved: FixedResolved
    facts: ModelFacts
    data: FixedData
    memory: tuple[MemoryItem, ...]
    allocator: str

    @property
    def settings(self) -> FixedSettings:
        """The settings themselves."""
        return self.resolved.settings


@dataclass(frozen=True, slots=True)
class FixedBench:
    """The parts of a run on fixed data."""

    preparation: FixedPreparation
    loaded: LoadedModel
    trainer: Trainer
    method: Method
    forward_gap: float

    @property
    def settings(self) -> FixedSettings:
        """The settings of the run."""
        return self.preparation.settings

    @property
    def data(self) -> FixedData:
        """The rows of the run."""
        return self.preparation.data

    def plan(self, units: Sequence[Sequence[TrainSequence]]) -> list[list[Block]]:
        """Micro-batches of whole units within the run's limits."""
        tokens = self.preparation.resolved.sizes.micro_batch_tokens
        return plan_units(units, self.trainer.cost, tokens, tokens * PAIRS_PER_TOKEN)

    def score(self, batch: FixedBatch) -> Array:
        """Values of the rows of a batch under the current weights, float64 (R,)."""
        return score_rows(self.trainer, self.plan(batch.units), len(batch), self.method.scorer)

    def score_mismatched(self, examples: Sequence[Example]) -> Array:
        """Log-probs of answers after prompts they do not belong to, float64 (E,); NaN where there is none."""
        units, having = mismatched_units(examples)
        values = np.full(len(examples), np.nan)
        values[having] = score_rows(self.trainer, self.plan(units), len(units), summed_logprobs)
        return values


def prepare_fixed(settings: FixedSettings, resolved: FixedResolved | None = None) -> FixedPreparation:
    """Probe machine and model facts, read the rows, decide every ``auto``. Nothing is written, no weights are loaded.

    ``resolved`` of an earlier process is taken as it is, so that a resumed run computes the same numbers.
    """
    allocator = tune_allocator()
    machine = probe_machine()
    plan, choices = (resolved.machine, ()) if resolved else resolve_machine(settings, machine)
    set_threads(plan.threads)
    facts = inspect_model(settings.model.path, tokenizer=settings.model.tokenizer, lora=settings.model.lora)
    row, _ = chosen_part(settings.policy)
    section = settings.data
    renderer = Renderer(
        tokenizer_of(settings), facts.eos_token_ids, section.render, section.system_prompt, section.train_on
    )
    data = load_data(section, row.row_kind, renderer, facts.context_length)
    if resolved is None:
        sizes, more = resolve_fixed_sizes(settings, plan, machine, facts, data.longest, facts.trainable_parameters)
        resolved = FixedResolved(settings, plan, sizes, (*choices, *more))
    memory = account(
        ModelCopies(
            parameters=facts.parameters,
            trainable=facts.trainable_parameters,
            master_dtype=settings.model.master_dtype,
            compute_dtype=plan.compute_dtype,
            reference=False,
            engine_copy=False,
            kv_bytes=0,
        )
    )
    memory = tuple(item for item in memory if item.name not in _SAMPLING)
    return FixedPreparation(resolved, facts, data, memory, allocator)


def build_fixed(preparation: FixedPreparation) -> FixedBench:
    """Load the model and build the trainer."""
    settings, resolved = preparation.settings, preparation.resolved
    _, part = chosen_part(settings.policy)
    loaded = load_prepared(settings, resolved.machine)
    model: Any = loaded.model
    gap = check_packed_forward(model)
    lora = attach_adapters(settings, model)
    if isinstance(part, RewardModelling):
        attach_reward_head(model, settings.run.seed)
    sizes = resolved.sizes
    trainer = Trainer(
        model,
        optimizer_settings(settings, resolved.sizes.learning_rate, settings.run.steps),
        HeadSettings(sizes.head_chunk_tokens, sizes.keep_logits_mb * MIB),
        temperature=1.0,
        master_dtype=getattr(torch, settings.model.master_dtype),
        lora=lora,
        checkpointing=settings.model.gradient_checkpointing,
        with_entropy=settings.logprobs.entropy,
    )
    return FixedBench(preparation, loaded, trainer, method_of(part), gap)


def fingerprint(data: FixedData) -> str:
    """SHA-256 of every token, mask, label and margin, in order: another file, template or split has another."""
    digest = hashlib.sha256()
    for rows in (data.train, data.held_out):
        digest.update(len(rows).to_bytes(8, "little"))
        for example in rows:
            digest.update(f"{example.record.desirable} {example.record.margin!r}".encode())
            for answer in (*example.answers, *([example.mismatched] if example.mismatched else [])):
                digest.update(len(answer).to_bytes(8, "little"))
                digest.update(answer.token_ids.tobytes() + answer.target_mask.tobytes())
    return digest.hexdigest()

"""From settings to a model ready to train: weights, tokenizer, adapters, optimizer. The same for every kind of run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from posttrain.model.attention import ATTENTION_NAME, register_attention
from posttrain.model.forward import prepare_model
from posttrain.model.load import LoadedModel, load_policy, load_tokenizer, resolve_directory
from posttrain.model.lora import LoraPolicy, attach_lora
from posttrain.model.tiny import TINY_PREFIX, build_tiny
from posttrain.policy.masters import OptimizerSettings
from posttrain.settings import FixedSettings, Settings
from posttrain.settings.resolve import MachinePlan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAIRS_PER_TOKEN = 1024
"""Attention pairs allowed in a micro-batch for each of its tokens: bounds score memory as tokens bound the rest."""


def load_prepared(settings: Settings | FixedSettings, machine: MachinePlan) -> LoadedModel:
    """The model of the run in its compute dtype, with the packed forward attached."""
    register_attention()
    loaded = load_policy(
        settings.model.path,
        getattr(torch, machine.compute_dtype),
        device=machine.device,
        tokenizer=settings.model.tokenizer,
        attention=ATTENTION_NAME,
        seed=settings.run.seed,
    )
    prepare_model(loaded.model)
    return loaded


def tokenizer_of(settings: Settings | FixedSettings) -> PreTrainedTokenizerBase:
    """The tokenizer alone, before any weights."""
    path = settings.model.path
    if settings.model.tokenizer is not None:
        return load_tokenizer(settings.model.tokenizer, "model.tokenizer")
    if path.startswith(TINY_PREFIX):
        return build_tiny(path.removeprefix(TINY_PREFIX))[1]
    return load_tokenizer(resolve_directory(path))


def attach_adapters(settings: Settings | FixedSettings, model: Any) -> LoraPolicy | None:
    """Low-rank adapters where ``[model.lora]`` is given."""
    section = settings.model.lora
    if section is None:
        return None
    return attach_lora(
        model,
        rank=section.rank,
        alpha=section.alpha,
        targets=section.targets,
        dropout=section.dropout,
        seed=settings.run.seed,
    )


def optimizer_settings(
    settings: Settings | FixedSettings, learning_rate: float, total_updates: int
) -> OptimizerSettings:
    """AdamW and its schedule over ``total_updates`` optimizer steps."""
    policy = settings.policy
    return OptimizerSettings(
        learning_rate=learning_rate,
        total_updates=total_updates,
        warmup_updates=policy.warmup_steps,
        schedule=policy.learning_rate_schedule,
        weight_decay=policy.weight_decay,
        beta1=policy.adam_beta1,
        beta2=policy.adam_beta2,
        eps=policy.adam_eps,
        gradient_clip=policy.gradient_clip,
    )

"""The sizes of a run on fixed data: every ``auto`` becomes a value with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from posttrain.errors import InputError
from posttrain.settings.facts import ELEMENT_BYTES, MachineFacts, ModelSizes
from posttrain.settings.field import NonNegative, Positive
from posttrain.settings.fixed import FixedSettings, learning_rate_of
from posttrain.settings.load import any_settings_from_mapping
from posttrain.settings.resolve import (
    GIVEN,
    MIB,
    Choice,
    LongestRow,
    MachinePlan,
    head_choices,
    micro_batch,
    stored_error,
)


@dataclass(frozen=True, slots=True)
class FixedSizes:
    """Sizes in tokens and MiB; ``longest_row`` is of both answers of a pair."""

    longest_row: Positive
    keep_logits_mb: NonNegative
    head_chunk_tokens: Positive
    micro_batch_tokens: Positive
    learning_rate: float


@dataclass(frozen=True, slots=True)
class FixedResolved:
    """Settings with nothing left to choose. Stored in the run directory, and reused as it is on resume."""

    settings: FixedSettings
    machine: MachinePlan
    sizes: FixedSizes
    choices: tuple[Choice, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "settings": self.settings.to_mapping(),
            "machine": asdict(self.machine),
            "sizes": asdict(self.sizes),
            "choices": [asdict(choice) for choice in self.choices],
        }

    @staticmethod
    def from_mapping(data: Mapping[str, Any]) -> FixedResolved:
        """Read back what :meth:`to_mapping` wrote. Raises InputError if it is damaged."""
        try:
            settings = any_settings_from_mapping(data["settings"])
            if not isinstance(settings, FixedSettings):
                raise TypeError("they are of a run that samples")
            return FixedResolved(
                settings,
                TypeAdapter(MachinePlan).validate_python(data["machine"]),
                TypeAdapter(FixedSizes).validate_python(data["sizes"]),
                tuple(Choice(**choice) for choice in data["choices"]),
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise stored_error(error) from error


def resolve_fixed_sizes(
    settings: FixedSettings,
    plan: MachinePlan,
    machine: MachineFacts,
    model: ModelSizes,
    longest_row: int,
    trainable_parameters: int,
) -> tuple[FixedSizes, tuple[Choice, ...]]:
    """Logits kept, micro-batch and learning rate; ``longest_row`` in tokens of what must stay together.

    Raises InputError if the model, or the activations of the longest row, do not fit into memory.
    """
    total = machine.cuda[0].memory_bytes if plan.device == "cuda" else machine.memory_bytes
    held = _held_bytes(settings, plan, model, trainable_parameters)
    free = total - held
    if free <= 0:
        raise InputError(
            "model.path",
            settings.model.path,
            f"training it takes {held / 1e9:.1f} GB and {total / 1e9:.1f} GB are free on {plan.device}",
            "Use a smaller model, [model.lora], or a machine with more memory.",
        )
    keep, chunk = head_choices(settings, model, free)
    words = f"the longest row (both answers of a pair) has {longest_row} tokens, and a row is never split"
    row = LongestRow(longest_row, words, "data.max_tokens")
    micro = micro_batch(settings, plan, model, row, free - int(keep.value) * MIB)
    rate = learning_rate_of(settings)
    lora = " x 10 for LoRA" if settings.model.lora else ""
    reason = GIVEN if settings.policy.learning_rate != "auto" else f"the row's{lora}"
    sizes = FixedSizes(longest_row, int(keep.value), int(chunk.value), int(micro.value), rate)
    return sizes, (keep, chunk, micro, Choice("policy.learning_rate", f"{rate:g}", reason))


def _held_bytes(settings: FixedSettings, plan: MachinePlan, model: ModelSizes, trainable: int) -> int:
    """Weights in the compute dtype, masters where their type differs, gradients and two AdamW moments.

    The reference's log-probs are computed before the first update, with the weights that are trained: no copy.
    """
    master, compute = ELEMENT_BYTES[settings.model.master_dtype], ELEMENT_BYTES[plan.compute_dtype]
    return model.parameters * compute + trainable * master * (3 + (master != compute))

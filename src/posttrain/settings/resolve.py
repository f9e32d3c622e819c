"""Every ``auto`` becomes a value with a reason that can be printed, stored and argued with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from posttrain.errors import InputError
from posttrain.settings.chosen import has_own_critic, holds_average, holds_reference
from posttrain.settings.facts import ELEMENT_BYTES, MachineFacts, ModelSizes, feed_forward_width, kv_bytes_per_token
from posttrain.settings.field import NonNegative, Positive
from posttrain.settings.fixed import FixedSettings
from posttrain.settings.load import settings_from_mapping
from posttrain.settings.tree import Settings

MIB = 1 << 20
GIVEN = "as given"
DEFAULT_COMPLETION = 512
MOST_RUNNING = 256
LOGITS_CHUNK_BYTES = 64 * MIB
MOST_MICRO_BATCH = {"cpu": 8192, "cuda": 32768}


@dataclass(frozen=True, slots=True)
class Choice:
    """The value a setting ended up with, and why."""

    setting: str
    value: int | str
    reason: str

    @property
    def automatic(self) -> bool:
        """True if the value was not written by the user."""
        return self.reason != GIVEN

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """What has to be known before the model is loaded."""

    device: str
    threads: Positive
    compute_dtype: str


@dataclass(frozen=True, slots=True)
class SizePlan:
    """Sizes that depend on the model and on the longest prompt, in tokens, rows and MiB."""

    longest_prompt: Positive
    max_new_tokens: Positive
    max_running: Positive
    kv_memory_mb: Positive
    keep_logits_mb: NonNegative
    head_chunk_tokens: Positive
    micro_batch_tokens: Positive

    @property
    def longest_row(self) -> int:
        """Most tokens one trajectory can have."""
        return self.longest_prompt + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with nothing left to choose. Stored in the run directory, and reused as it is on resume."""

    settings: Settings
    machine: MachinePlan
    sizes: SizePlan
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
    def from_mapping(data: Mapping[str, Any]) -> Resolved:
        """Read back what :meth:`to_mapping` wrote. Raises InputError if it is damaged."""
        try:
            return Resolved(
                settings_from_mapping(data["settings"]),
                TypeAdapter(MachinePlan).validate_python(data["machine"]),
                TypeAdapter(SizePlan).validate_python(data["sizes"]),
                tuple(Choice(**choice) for choice in data["choices"]),
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise stored_error(error) from error


def resolve_machine(
    settings: Settings | FixedSettings, machine: MachineFacts
) -> tuple[MachinePlan, tuple[Choice, ...]]:
    """Device, threads and compute dtype. Raises InputError for a GPU that is not there."""
    device = _device(settings, machine)
    threads = choose("run.threads", settings.run.threads, machine.cores, f"this process may use {machine.cores} cores")
    dtype = _compute_dtype(settings, machine, str(device.value))
    return MachinePlan(str(device.value), int(threads.value), str(dtype.value)), (device, threads, dtype)


def resolve_sizes(
    settings: Settings,
    plan: MachinePlan,
    machine: MachineFacts,
    model: ModelSizes,
    longest_prompt: int,
    trainable_parameters: int | None = None,
    *,
    sampling_only: bool = False,
    teacher_parameters: int = 0,
) -> tuple[SizePlan, tuple[Choice, ...]]:
    """Generation length, engine and micro-batch sizes. ``longest_prompt`` in tokens over all tasks.

    ``trainable_parameters`` counts the adapters when LoRA is on; ``None``: every weight is trained.
    ``teacher_parameters`` are those of a teacher's frozen weights. With ``sampling_only`` nothing is trained: memory
    is that of the engine, and the micro-batch is one row.

    Raises InputError if the prompt leaves no room in the context or the model does not fit into memory.
    """
    element = ELEMENT_BYTES[plan.compute_dtype]
    total = machine.cuda[0].memory_bytes if plan.device == "cuda" else machine.memory_bytes
    if sampling_only:
        held = sampling_bytes(plan, model)
    else:
        held = resident_bytes(settings, plan, model, trainable_parameters)
        held += teacher_parameters * element
    free = total - held
    if free <= 0:
        what = "sampling from" if sampling_only else "training"
        raise InputError(
            "model.path",
            settings.model.path,
            f"{what} it takes {held / 1e9:.1f} GB and {total / 1e9:.1f} GB are free on {plan.device}",
            f"Use a smaller model, {'' if sampling_only else '[model.lora], '}or a machine with more memory.",
        )
    new_tokens = _max_new_tokens(settings, model, longest_prompt)
    row = longest_prompt + int(new_tokens.value)
    batch = settings.rollout.group_size * settings.rollout.prompts_per_step
    running = choose(
        "rollout.max_running",
        settings.rollout.max_running,
        min(batch, MOST_RUNNING),
        f"a batch has {batch} rows, and decoding gains little beyond {MOST_RUNNING} at once",
    )
    kv = _kv_memory(settings, kv_bytes_per_token(model, element), row, int(running.value), free)
    keep, chunk = head_choices(settings, model, free)
    left = free - (int(kv.value) + int(keep.value)) * MIB
    micro = (
        Choice("policy.micro_batch_tokens", row, "one row: nothing is trained")
        if sampling_only
        else micro_batch(settings, plan, model, _longest(row), left)
    )
    sizes = SizePlan(
        longest_prompt,
        int(new_tokens.value),
        int(running.value),
        int(kv.value),
        int(keep.value),
        int(chunk.value),
        int(micro.value),
    )
    return sizes, (new_tokens, running, kv, keep, chunk, micro)


def resolve(
    settings: Settings,
    machine: MachineFacts,
    model: ModelSizes,
    longest_prompt: int,
    trainable_parameters: int | None = None,
) -> Resolved:
    """Both halves at once. Raises InputError as they do."""
    plan, first = resolve_machine(settings, machine)
    sizes, second = resolve_sizes(settings, plan, machine, model, longest_prompt, trainable_parameters)
    return Resolved(settings, plan, sizes, (*first, *second))


def describe(choices: Sequence[Choice]) -> list[str]:
    """One line for each automatic choice."""
    return [str(choice) for choice in choices if choice.automatic]


def resident_bytes(
    settings: Settings, plan: MachinePlan, model: ModelSizes, trainable_parameters: int | None = None
) -> int:
    """Bytes held all through training: trainer, masters, gradients, two AdamW moments, engine copy, reference, critic.

    Trainer and engine hold the weights in the compute dtype; masters are a copy of their own where their type differs;
    the reference is one more copy when something is anchored, except with LoRA, where it is the policy without its
    adapters. A critic of its own is one more trained model with float32 masters.
    """
    master, compute = ELEMENT_BYTES[settings.model.master_dtype], ELEMENT_BYTES[plan.compute_dtype]
    copies = 2 + holds_reference(settings)
    trained = model.parameters if trainable_parameters is None else trainable_parameters
    critic = 0
    if has_own_critic(settings):
        critic = model.parameters * compute + trained * 4 * (3 + (compute != 4))
    average = model.parameters * 4 if holds_average(settings) and compute != 4 else 0
    return model.parameters * compute * copies + trained * master * (3 + (master != compute)) + critic + average


def sampling_bytes(plan: MachinePlan, model: ModelSizes) -> int:
    """Most bytes of weights that sampling alone holds: the copy just loaded and the engine's, both as computed with."""
    return 2 * model.parameters * ELEMENT_BYTES[plan.compute_dtype]


def activation_bytes_per_token(settings: Settings | FixedSettings, plan: MachinePlan, model: ModelSizes) -> int:
    """Estimate of what one token keeps for the backward pass.

    Counts the inputs of every linear layer and norm of a gated decoder block, plus half for attention
    and allocator slack. With checkpointing only the block inputs stay, and one block is live.
    """
    element = ELEMENT_BYTES[plan.compute_dtype]
    block = element * (10 * model.hidden + 5 * feed_forward_width(model)) + 8 * model.hidden
    if settings.model.gradient_checkpointing:
        return int(1.5 * (model.layers * model.hidden * element + block))
    return int(1.5 * model.layers * block)


def choose(name: str, given: int | str, automatic: int | str, reason: str) -> Choice:
    """The automatic value with its reason where ``given`` is ``auto``, and the given one otherwise."""
    return Choice(name, automatic, reason) if given == "auto" else Choice(name, given, GIVEN)


def _device(settings: Settings | FixedSettings, machine: MachineFacts) -> Choice:
    if settings.run.device == "cuda" and not machine.cuda:
        raise InputError("run.device", "cuda", "no GPU is visible to this process", 'Set it to "cpu" or "auto".')
    if machine.cuda:
        return choose("run.device", settings.run.device, "cuda", f"a GPU is here ({machine.cuda[0].name})")
    return choose("run.device", settings.run.device, "cpu", "no GPU is visible to this process")


def _compute_dtype(settings: Settings | FixedSettings, machine: MachineFacts, device: str) -> Choice:
    native = machine.cuda[0].bfloat16 if device == "cuda" else machine.cpu_bfloat16
    if settings.model.path.startswith("tiny:"):
        value, reason = "float32", "a tiny model gains nothing from a narrower type"
    elif native:
        value, reason = "bfloat16", f"this {'GPU' if device == 'cuda' else 'processor'} multiplies bfloat16 natively"
    else:
        value, reason = "float32", f"bfloat16 is emulated on this {'GPU' if device == 'cuda' else 'processor'}"
    return choose("model.compute_dtype", settings.model.compute_dtype, value, reason)


def _max_new_tokens(settings: Settings, model: ModelSizes, longest_prompt: int) -> Choice:
    room = model.context_length - longest_prompt
    if room < 1:
        raise InputError(
            "environments",
            f"{longest_prompt} prompt tokens",
            f"the model's context holds {model.context_length}",
            "Drop or shorten the longest prompts.",
        )
    given = settings.rollout.max_new_tokens
    if given != "auto" and given > room:
        raise InputError(
            "rollout.max_new_tokens",
            given,
            f"with the longest prompt of {longest_prompt} tokens it exceeds the context of {model.context_length}",
            f"Set it to at most {room}.",
        )
    reason = (
        f"the default of {DEFAULT_COMPLETION} for short answers fits the context of {model.context_length}"
        if room >= DEFAULT_COMPLETION
        else f"the context of {model.context_length} leaves {room} after the longest prompt of {longest_prompt} tokens"
    )
    return choose("rollout.max_new_tokens", given, min(DEFAULT_COMPLETION, room), reason)


def _longest(row: int) -> LongestRow:
    words = f"prompt and completion together can have {row} tokens, and a sequence is never split"
    return LongestRow(row, words, "rollout.max_new_tokens")


def _kv_memory(settings: Settings, per_token: int, row: int, running: int, free: int) -> Choice:
    one_row = per_token * row
    needed, most = -(-running * one_row // MIB), max(1, free // 4 // MIB)
    reason = (
        f"{running} rows of {row} tokens need {needed} MiB"
        if needed <= most
        else f"a quarter of the free memory; {running} rows of {row} tokens would need {needed} MiB: fewer run at once"
    )
    choice = choose("rollout.kv_memory_mb", settings.rollout.kv_memory_mb, min(needed, most), reason)
    if int(choice.value) * MIB < one_row:
        raise InputError(
            "rollout.kv_memory_mb",
            choice.value,
            f"one row of {row} tokens needs {one_row / MIB:.1f} MiB",
            f"Set it to at least {-(-one_row // MIB)}, or lower rollout.max_new_tokens.",
        )
    return choice


def head_choices(settings: Settings | FixedSettings, model: ModelSizes, free: int) -> tuple[Choice, Choice]:
    """Memory for kept logits and tokens in a chunk of them; ``free`` in bytes."""
    keep = choose(
        "logprobs.keep_logits_mb",
        settings.logprobs.keep_logits_mb,
        free // 8 // MIB,
        f"an eighth of the {free // MIB} MiB the model copies leave free",
    )
    chunk = choose(
        "logprobs.head_chunk_tokens",
        settings.logprobs.head_chunk_tokens,
        max(16, LOGITS_CHUNK_BYTES // (4 * model.vocabulary)),
        f"keeps float32 logits of a vocabulary of {model.vocabulary} near {LOGITS_CHUNK_BYTES // MIB} MiB",
    )
    return keep, chunk


@dataclass(frozen=True, slots=True)
class LongestRow:
    """What a micro-batch must hold at least: ``tokens``, ``words`` that say why, the ``setting`` that shortens it."""

    tokens: int
    words: str
    setting: str


def micro_batch(
    settings: Settings | FixedSettings, plan: MachinePlan, model: ModelSizes, row: LongestRow, left: int
) -> Choice:
    """Tokens of one pass, with ``left`` bytes for activations. Raises InputError if the longest row does not fit."""
    given = settings.policy.micro_batch_tokens
    if given != "auto":
        if given < row.tokens:
            fix = f"Set it to at least {row.tokens}, or lower {row.setting}."
            raise InputError("policy.micro_batch_tokens", given, row.words, fix)
        return Choice("policy.micro_batch_tokens", given, GIVEN)
    per_token = activation_bytes_per_token(settings, plan, model)
    fitting, most = int(0.5 * left / per_token), MOST_MICRO_BATCH[plan.device]
    if fitting < row.tokens:
        raise InputError(
            "policy.micro_batch_tokens",
            "auto",
            f"a row of {row.tokens} tokens takes about {row.tokens * per_token / 1e9:.1f} GB of activations "
            f"and {max(left, 0) / 2e9:.1f} GB are set aside for them",
            f"Set model.gradient_checkpointing = true, lower {row.setting}, or give a number to try anyway.",
        )
    reason = (
        f"larger passes are no faster on {plan.device}"
        if fitting >= most
        else f"half of the free memory at about {per_token / 1e6:.2f} MB of activations a token"
    )
    return Choice("policy.micro_batch_tokens", max(row.tokens, min(fitting, most)), reason)


def stored_error(error: Exception) -> InputError:
    """What is said of a ``run.json`` whose settings cannot be read back."""
    return InputError(
        "run.json",
        " ".join(str(error).split()[:30]),
        "the stored settings are incomplete or damaged",
        "Start a new run from its settings file.",
    )

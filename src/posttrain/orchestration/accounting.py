"""Bytes of every copy of the model, known before anything is loaded, and which copies share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.errors import InputError
from posttrain.settings.facts import ELEMENT_BYTES

_ADAM_MOMENTS = 2
_CRITIC_MASTER = 4
"""Bytes of a master weight of the critic: always float32."""


@dataclass(frozen=True, slots=True)
class ModelCopies:
    """What decides how often the weights are held. Counts are of parameters, adapters included; a
    tied head counts once.

    ``head_parameters`` is the size of a tied output layer that the engine stores a second time in the
    layout its matrix products want (0 if it does not). ``engine_copy`` false: sampler and trainer share
    their weights. ``kv_bytes`` is the engine's limit for keys and values. ``teacher_parameters`` is 0 without a
    teacher and where the policy is its own. ``critic``: one of its own is trained, without the ``unused_head``
    parameters of an untied output layer. ``average``: the reference is a moving average.
    """

    parameters: int
    trainable: int
    master_dtype: str
    compute_dtype: str
    reference: bool
    engine_copy: bool
    kv_bytes: int
    head_parameters: int = 0
    teacher_parameters: int = 0
    critic: bool = False
    unused_head: int = 0
    average: bool = False


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One block of memory. ``shared_with`` names the item whose bytes it uses; its own are 0 then."""

    name: str
    bytes: int
    shared_with: str
    note: str


def account(copies: ModelCopies) -> tuple[MemoryItem, ...]:
    """The blocks in the order they are allocated. Raises InputError on a dtype that is not known."""
    master, compute = (
        _width("model.master_dtype", copies.master_dtype),
        _width("model.compute_dtype", copies.compute_dtype),
    )
    frozen = copies.parameters - copies.trainable
    trained = f"{_millions(copies.trainable)} of {_millions(copies.parameters)}" if frozen else "all"
    items = [
        MemoryItem("trainer weights", copies.parameters * compute, "", f"{copies.compute_dtype}, {trained} trained"),
        MemoryItem("master weights", copies.trainable * master, "", f"{copies.master_dtype}, what the optimizer moves")
        if copies.compute_dtype != copies.master_dtype
        else MemoryItem("master weights", 0, "trainer weights", copies.master_dtype),
        MemoryItem("gradients", copies.trainable * master, "", copies.master_dtype),
        MemoryItem(
            "optimizer", copies.trainable * _ADAM_MOMENTS * master, "", f"two AdamW moments, {copies.master_dtype}"
        ),
    ]
    if copies.engine_copy:
        note = f"{copies.compute_dtype}, one copy"
        if copies.head_parameters:
            note += ", tied head twice"
        held = copies.parameters + copies.head_parameters
        items.append(MemoryItem("engine weights", held * compute, "", note))
    else:
        items.append(MemoryItem("engine weights", 0, "trainer weights", "no copy"))
    if copies.reference:
        items.append(
            MemoryItem("reference weights", copies.parameters * compute, "", f"{copies.compute_dtype}, frozen")
        )
    else:
        items.append(MemoryItem("reference weights", 0, "", "not needed: no anchor"))
    if copies.average and compute != 4:
        items.append(
            MemoryItem("reference average", copies.parameters * 4, "", "float32, what the policy is mixed into")
        )
    if copies.teacher_parameters:
        note = f"{copies.compute_dtype}, frozen"
        items.append(MemoryItem("teacher weights", copies.teacher_parameters * compute, "", note))
    if copies.critic:
        items += _critic(copies, compute)
    items.append(MemoryItem("keys and values", copies.kv_bytes, "", "limit of the engine"))
    return tuple(items)


def _critic(copies: ModelCopies, compute: int) -> list[MemoryItem]:
    held = copies.parameters - copies.unused_head
    trained = copies.trainable if copies.trainable < copies.parameters else held
    own_masters = trained * _CRITIC_MASTER if compute != _CRITIC_MASTER else 0
    state = own_masters + trained * _CRITIC_MASTER * (1 + _ADAM_MOMENTS)
    return [
        MemoryItem("critic weights", held * compute, "", f"{copies.compute_dtype}, a backbone of its own"),
        MemoryItem("critic training", state, "", "float32: masters, gradients, two AdamW moments"),
    ]


def total_bytes(items: Sequence[MemoryItem]) -> int:
    """Sum of the blocks; shared ones count once."""
    return sum(item.bytes for item in items)


def memory_lines(items: Sequence[MemoryItem]) -> list[str]:
    """The table as plain lines of at most 80 characters, total last."""
    lines: list[str] = []
    for item in items:
        shared = f"shared with {item.shared_with}; " if item.shared_with else ""
        size = _mib(item.bytes) if item.bytes else "-"
        lines.append(f"{item.name:<18}{size:>13}  {shared}{item.note}")
    lines.append(f"{'together':<18}{_mib(total_bytes(items)):>13}  activations come on top")
    return [line if len(line) <= 80 else line[:79] + "…" for line in lines]


def memory_json(items: Sequence[MemoryItem]) -> list[dict[str, Any]]:
    """JSON-compatible form, for the run directory."""
    return [asdict(item) for item in items]


def _width(setting: str, dtype: str) -> int:
    if dtype not in ELEMENT_BYTES:
        raise InputError(setting, dtype, "is not a known type", f"Use one of {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M"

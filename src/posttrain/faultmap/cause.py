"""Types of the map itself: symptoms, causes, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.signals.framework import Framework
from posttrain.signals.signal import Layer


@dataclass(frozen=True, slots=True)
class Cause:
    """What can be wrong (or only looks wrong: ``benign``).

    ``other_layer`` is set where the fault lies at an interface between two layers. ``check`` is the experiment that
    confirms it; ``remedy`` holds for every framework, ``remedies`` say it in the settings of one.
    """

    name: str
    layer: Layer
    title: str
    mechanism: str
    check: str
    remedy: str
    remedies: Mapping[Framework, str] = field(default_factory=dict[Framework, str])
    other_layer: Layer | None = None
    benign: bool = False


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is seen. ``causes`` are the candidates of its differential diagnosis, in the order in which to look."""

    name: str
    layer: Layer
    title: str
    looks_like: str
    causes: tuple[str, ...]
    signals: tuple[str, ...]

"""Finds a name in the map: symptom, cause, detector, signal, or a key of another framework's log."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from posttrain.errors import InputError
from posttrain.faultmap.cause import Cause, Symptom
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import DETECTORS
from posttrain.signals.aliases import ALIASES, find_alias
from posttrain.signals.framework import Alias, Framework
from posttrain.signals.registry import SIGNALS, UnknownSignalError, signal_for
from posttrain.signals.signal import Signal


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a framework's log: the signal it stands for (parameters filled in) and the alias."""

    framework: Framework
    signal: str
    alias: Alias


@dataclass(frozen=True, slots=True)
class Entry:
    """Everything that bears a name."""

    name: str
    symptom: Symptom | None
    cause: Cause | None
    detector: Detector | None
    signal: Signal | None
    keys: tuple[Key, ...]


def look_up(name: str) -> Entry:
    """Find a name. Raises InputError with the nearest names where nothing bears it."""
    keys = tuple(_keys(name))
    detector = next((d for d in DETECTORS if d.name == name), None)
    entry = Entry(name, SYMPTOMS.get(name), CAUSES.get(name), detector, _signal(name), keys)
    if not any((entry.symptom, entry.cause, entry.detector, entry.signal, entry.keys)):
        nearest = difflib.get_close_matches(name, _names(), n=3, cutoff=0.5)
        hint = f"The nearest: {', '.join(nearest)}." if nearest else "All of them: posttrain explain."
        raise InputError("NAME", name, "is no symptom, cause, detector, signal or key of a log known here", hint)
    return entry


def detectors_reading(signal: Signal) -> list[Detector]:
    """Detectors that need a signal or are sharpened by it."""
    return [d for d in DETECTORS if any(_stands_for(name, signal) for name in _read_by(d))]


def symptoms_of(cause: str) -> list[Symptom]:
    """Symptoms among whose candidates a cause is."""
    return [s for s in SYMPTOMS.values() if cause in s.causes]


def symptoms_seen_in(signal: Signal) -> list[Symptom]:
    """Symptoms that show in a signal."""
    return [s for s in SYMPTOMS.values() if signal.name in s.signals]


def _read_by(detector: Detector) -> list[str]:
    return [*(name for need in detector.needs for name in need), *detector.sharpened_by]


def _stands_for(name: str, signal: Signal) -> bool:
    return name == signal.name or _signal(name) is signal


def _signal(name: str) -> Signal | None:
    if name in SIGNALS:
        return SIGNALS[name]
    try:
        return signal_for(name)
    except UnknownSignalError:
        return None


def _keys(name: str) -> list[Key]:
    found: list[Key] = []
    for framework, aliases in ALIASES.items():
        match = find_alias(framework, name) if aliases and framework is not Framework.PLAIN else None
        # A framework that does not log the name at all answers with our own signal of that name.
        if match is not None and match[1].key != match[1].signal:
            found.append(Key(framework, *match))
    return found


def _names() -> list[str]:
    keys = [alias.key for aliases in ALIASES.values() for alias in aliases]
    return list(dict.fromkeys([*SYMPTOMS, *CAUSES, *(d.name for d in DETECTORS), *SIGNALS, *keys]))

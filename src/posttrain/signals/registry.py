"""Every signal of every layer, found by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from posttrain.signals import (
    critic,
    distillation,
    evaluation,
    foreign,
    logprobs,
    policy,
    preference,
    reward,
    rollout,
    run,
    schedule,
)
from posttrain.signals.signal import Signal

_PARAMETERS: Mapping[str, str] = MappingProxyType(
    {"k": r"[1-9][0-9]*", "bin": r"0|0-25|25-50|50-75|75-100|100", "quarter": r"[1-4]"}
)
"""What a parameter may look like; one that is not listed is any text without a slash."""

_PARAMETER = re.compile(r"\{([a-z_]+)\}")


class UnknownSignalError(KeyError):
    """A name that no signal has. A value nobody defined is never written."""

    def __init__(self, name: str, nearest: str | None) -> None:
        self.name = name
        self.nearest = nearest
        super().__init__(name)

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}" if self.nearest else ""
        return f"no signal is called {self.name!r}{hint}. Signals are defined in posttrain.signals."


def _collect() -> Mapping[str, Signal]:
    tables = (
        reward.SIGNALS,
        evaluation.SIGNALS,
        policy.SIGNALS,
        critic.SIGNALS,
        distillation.SIGNALS,
        preference.SIGNALS,
        logprobs.SIGNALS,
        rollout.SIGNALS,
        schedule.SIGNALS,
        run.SIGNALS,
        foreign.SIGNALS,
    )
    signals: dict[str, Signal] = {}
    for table in tables:
        for signal in table:
            if signal.name in signals:
                raise ValueError(f"signal {signal.name} is defined twice")
            signals[signal.name] = signal
    return MappingProxyType(signals)


def _pattern(template: str) -> re.Pattern[str]:
    parts: list[str] = []
    end = 0
    for match in _PARAMETER.finditer(template):
        parts.append(re.escape(template[end : match.start()]))
        parts.append(f"(?P<{match[1]}>{_PARAMETERS.get(match[1], '[^/]+')})")
        end = match.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts))


SIGNALS: Mapping[str, Signal] = _collect()
"""All signals by name; templated names hold their parameters in braces."""

_TEMPLATES: tuple[tuple[re.Pattern[str], Signal], ...] = tuple(
    (_pattern(name), signal) for name, signal in SIGNALS.items() if "{" in name
)


def find_signal(name: str) -> Signal | None:
    """The signal of a concrete name, templated ones included; ``None`` where there is none."""
    if name in SIGNALS and "{" not in name:
        return SIGNALS[name]
    return next((signal for pattern, signal in _TEMPLATES if pattern.fullmatch(name)), None)


@lru_cache(maxsize=4096)
def signal_for(name: str) -> Signal:
    """The signal of a concrete name, templated ones included. Raises UnknownSignalError with the nearest name."""
    found = find_signal(name)
    if found is not None:
        return found
    nearest = difflib.get_close_matches(name, SIGNALS, n=1)
    raise UnknownSignalError(name, nearest[0] if nearest else None)


def parameters_of(name: str) -> dict[str, str]:
    """Parameters in a concrete name: ``reward/part/correct/mean`` gives ``{"part": "correct"}``."""
    template = signal_for(name).name
    match = _pattern(template).fullmatch(name)
    return dict(match.groupdict()) if match else {}

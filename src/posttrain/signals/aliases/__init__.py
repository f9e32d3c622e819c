"""What the keys of other frameworks' logs stand for, and how to make a framework log a signal.

A parameter in a key (``{part}``) stands for any text; a slash in it becomes a dot in the signal's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from posttrain.signals.aliases import areal, nemo_rl, openrlhf, plain, prime_rl, slime, trl, verl
from posttrain.signals.framework import Alias, Framework
from posttrain.signals.registry import SIGNALS, find_signal, signal_for

ALIASES: Mapping[Framework, tuple[Alias, ...]] = MappingProxyType(
    {
        Framework.POSTTRAIN: (),
        Framework.TRL: trl.ALIASES,
        Framework.VERL: verl.ALIASES,
        Framework.PRIME_RL: prime_rl.ALIASES,
        Framework.OPENRLHF: openrlhf.ALIASES,
        Framework.SLIME: slime.ALIASES,
        Framework.NEMO_RL: nemo_rl.ALIASES,
        Framework.AREAL: areal.ALIASES,
        Framework.PLAIN: plain.ALIASES,
    }
)
"""The tables. Where two keys of a log give one signal, the one listed first counts."""

NAMES: Mapping[Framework, str] = MappingProxyType(
    {
        Framework.POSTTRAIN: "posttrain",
        Framework.TRL: "TRL",
        Framework.VERL: "verl",
        Framework.PRIME_RL: "prime-rl",
        Framework.OPENRLHF: "OpenRLHF",
        Framework.SLIME: "slime",
        Framework.NEMO_RL: "NeMo-RL",
        Framework.AREAL: "AReaL",
        Framework.PLAIN: "a plain table",
    }
)
"""How people write the frameworks' names."""

_TRACKER_PREFIXES: Mapping[Framework, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        Framework.TRL: (("train/", ""), ("eval/", "eval_")),
        Framework.OPENRLHF: (("train/", ""), ("eval/", "")),
        Framework.PLAIN: (("train/", ""), ("train_", ""), ("metrics/", "")),
    }
)
"""What trackers put before a key, and what the key is called without them."""

_FALLBACKS = (
    Framework.TRL,
    Framework.VERL,
    Framework.PRIME_RL,
    Framework.NEMO_RL,
    Framework.SLIME,
    Framework.AREAL,
    Framework.OPENRLHF,
)
_PARAMETER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class _Table:
    """One framework's aliases, ready to be searched: exact keys by name, keys with parameters as patterns."""

    exact: Mapping[str, Alias]
    patterns: tuple[tuple[re.Pattern[str], Alias], ...]

    def find(self, key: str) -> tuple[str, Alias] | None:
        alias = self.exact.get(key)
        if alias is not None:
            return alias.signal, alias
        for pattern, templated in self.patterns:
            match = pattern.fullmatch(key)
            if match:
                values = {name: value.replace("/", ".") for name, value in match.groupdict().items()}
                return _PARAMETER.sub(lambda m, found=values: found[m[1]], templated.signal), templated
        return None


@cache
def _table(framework: Framework) -> _Table:
    aliases = ALIASES[framework]
    return _Table(
        {alias.key: alias for alias in aliases if "{" not in alias.key},
        tuple((_key_pattern(alias.key), alias) for alias in aliases if "{" in alias.key),
    )


def _key_pattern(key: str) -> re.Pattern[str]:
    parts: list[str] = []
    end = 0
    for match in _PARAMETER.finditer(key):
        value = "[1-9][0-9]*" if match[1] in ("k", "n") else ".+?"
        parts += [re.escape(key[end : match.start()]), f"(?P<{match[1]}>{value})"]
        end = match.end()
    return re.compile("".join([*parts, re.escape(key[end:])]))


def find_alias(framework: Framework, key: str) -> tuple[str, Alias] | None:
    """The signal a key stands for, parameters filled in, and the alias; ``None`` for a key nobody listed.

    posttrain's own names stand for themselves in every framework. In a plain table the names of all frameworks are
    tried; in a framework's log those that every framework's users add.
    """
    own = _own(key)
    if framework is Framework.POSTTRAIN or (own is not None and framework is Framework.PLAIN):
        return own
    for spelling in _spellings(framework, key):
        found = _table(framework).find(spelling)
        if found is not None:
            return found
    if framework is Framework.PLAIN:
        for other in _FALLBACKS:
            found = find_alias(other, key)
            if found is not None:
                return found
        return None
    if own is None and key in plain.ADDED_KEYS:
        return _table(Framework.PLAIN).find(key)
    return own


def _own(key: str) -> tuple[str, Alias] | None:
    return (key, Alias(key, key)) if find_signal(key) is not None else None


def _spellings(framework: Framework, key: str) -> list[str]:
    spellings = [key]
    for prefix, instead in _TRACKER_PREFIXES.get(framework, ()):
        if key.startswith(prefix):
            spellings.append(instead + key[len(prefix) :])
    if framework is Framework.NEMO_RL and not key.startswith(("train/", "validation/", "timing/", "performance/")):
        spellings.append(f"train/{key}")
    return spellings


def aliases_of(framework: Framework, signal: str) -> list[Alias]:
    """The keys under which a framework logs a signal, in the order in which they count.

    Raises UnknownSignalError for a name no signal has.
    """
    wanted = _template(signal)
    return [alias for alias in ALIASES[framework] if _template(alias.signal) == wanted]


def _template(signal: str) -> str:
    return signal if signal in SIGNALS else signal_for(signal).name


def how_to_log(framework: Framework, signal: str) -> str:
    """One sentence: the key under which a framework logs a signal and what must be set, or that it does not.

    Raises UnknownSignalError for a name no signal has.
    """
    definition = SIGNALS[_template(signal)]
    if framework is Framework.POSTTRAIN:
        return (
            f"posttrain writes `{signal}` by itself." if definition.written else f"posttrain does not write `{signal}`."
        )
    if framework is Framework.PLAIN:
        return f"Log a column `{signal}` ({definition.unit}): {definition.definition}"
    found = aliases_of(framework, signal)
    name = NAMES[framework]
    if not found:
        return f"{name} does not log it. Log a key `{signal}` ({definition.unit}) yourself: {definition.definition}"
    best = found[0]
    needs = f", once this is set: {best.setting}" if best.setting else ""
    return f"{name} logs it as `{best.key}`{needs}."

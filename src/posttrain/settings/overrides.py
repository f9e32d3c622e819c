"""``--section.key value`` on the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import InputError
from posttrain.settings.schema import Path, dotted

_NAME = re.compile(r"--([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+)")

_LOOSE_FLOAT = re.compile(r"[+-]?(?:\d+\.|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Override:
    """One setting given on the command line. ``value`` is parsed, ``text`` is as typed."""

    path: Path
    value: Any
    text: str


def parse_overrides(arguments: Sequence[str]) -> tuple[Override, ...]:
    """Read ``--section.key value`` and ``--section.key=value``.

    Values are read like TOML (numbers, true/false, lists, quoted strings); anything else is a string.
    Raises InputError for a name without a value, a value without a name, and a setting given twice.
    """
    found: dict[Path, Override] = {}
    rest = list(arguments)
    while rest:
        name, separator, text = rest.pop(0).partition("=")
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(
                "command line", name, "is neither a setting nor an option", "Write settings as --section.key value."
            )
        path = tuple(part.replace("-", "_") for part in match.group(1).split("."))
        if path[0] == "environments":
            path = ("environments", match.group(1).split(".")[1], *path[2:])
        if not separator:
            if not rest or _NAME.match(rest[0]):
                raise InputError(name, "", "has no value", f"Write {name} VALUE (for a switch: true or false).")
            text = rest.pop(0)
        if path in found:
            raise InputError(name, text, f"is given twice, first as {found[path].text!r}", "Give it once.")
        found[path] = Override(path, parse_value(text), text)
    return tuple(found.values())


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is none."""
    try:
        document = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return float(text) if _LOOSE_FLOAT.fullmatch(text) else text
    return document["value"] if len(document) == 1 else text


def merge(data: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """A copy of ``data`` with the overrides put in. Raises InputError if one goes below a plain value."""
    result = _copy(data)
    for override in overrides:
        node = result
        for depth, key in enumerate(override.path[:-1]):
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                raise InputError(
                    dotted(override.path),
                    override.text,
                    f"{dotted(override.path[: depth + 1])} is not a table",
                    "Drop it.",
                )
            node = child
        node[override.path[-1]] = override.value
    return result


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}

"""Where each setting was written, so that an error can point at it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.settings.schema import Path, dotted

_LONG_QUOTE = re.compile(r'"""|\'\'\'')
_STRING_OR_COMMENT = re.compile(
    r"""
    "{3}(?:[^\\]|\\.)*?"{3} | '{3}.*?'{3}         # long strings that end in the line
  | (?P<open>"{3}.* | '{3}.*)                     # one that does not
  | "(?:[^"\\]|\\.)*" | '[^']*' | \#.*
    """,
    re.VERBOSE,
)
_BARE_OR_QUOTED = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")


@dataclass(frozen=True, slots=True)
class Source:
    """A settings file and the overrides beside it."""

    file: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
    overrides: Mapping[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """`` (train.toml:12)`` or `` (command line)``; empty if the settings came from code."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.overrides:
                return f" (--{dotted(path[:length])} on the command line)"
            if path[:length] in self.lines:
                return f" ({self.file}:{self.lines[path[:length]]})"
        below = next((given for given in self.overrides if given[: len(path)] == path), None)
        if below is not None:
            return f" (--{dotted(below)} on the command line)"
        return f" ({self.file})" if self.file else ""


def key_lines(text: str) -> dict[Path, int]:
    """Line number, from 1, of every table and key of a TOML text. Keys of inline tables count for their line."""
    found: dict[Path, int] = {}
    table: Path = ()
    closing, depth = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        stripped = line.strip()
        if depth == 0 and stripped.startswith("["):
            table = _keys(stripped.strip("[").split("]")[0])
            found.setdefault(table, number)
            continue
        if depth == 0 and stripped and not stripped.startswith("#") and "=" in stripped:
            head = _keys(stripped)
            for length in range(1, len(head) + 1):
                found.setdefault((*table, *head[:length]), number)
        closing = _unclosed_quote(line)
        depth += _bracket_balance(line)
    return found


def _keys(text: str) -> Path:
    keys: list[str] = []
    position = 0
    while match := _BARE_OR_QUOTED.match(text, position):
        keys.append(next(group for group in match.groups() if group is not None))
        position = match.end()
        if position >= len(text) or text[position] != ".":
            break
        position += 1
    return tuple(keys)


def _unclosed_quote(line: str) -> str:
    opened = _LONG_QUOTE.search(_closed(line))
    return opened.group() if opened else ""


def _bracket_balance(line: str) -> int:
    bare = _LONG_QUOTE.split(_closed(line))[0]
    return bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}")


def _closed(line: str) -> str:
    """The line without its strings and comment; a string that goes on in the next line stays, from its quote on."""
    return _STRING_OR_COMMENT.sub(lambda match: match["open"] or "", line)

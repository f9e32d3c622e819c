"""Markup in which escaping cannot be forgotten: text is escaped unless it is already `Html`."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"meta", "link", "input", "br", "line", "rect", "circle", "path", "use"})
_SVG_VOID = frozenset({"line", "rect", "circle", "path", "use"})
_INVISIBLE = {"\u2028": "\\u2028", "\u2029": "\\u2029"}


class Html(str):
    """Markup that was built by `tag` (or written by us) and needs no further escaping."""

    __slots__ = ()


def escape(text: object) -> Html:
    """The text as markup; `Html` passes through unchanged, everything else is escaped, quotes included."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Escape each part and put them one after the other."""
    return Html(separator.join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """One element. ``class_`` and ``for_`` lose their underscore, other underscores become hyphens.

    An attribute that is ``None`` or ``False`` is left out, ``True`` is written without a value; a child
    that is ``None`` is left out.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{written}{'/' if name in _SVG_VOID else ''}>")
    return Html(f"<{name}{written}>{join(c for c in children if c is not None)}</{name}>")


def json_block(identifier: str, data: Any) -> Html:
    """A JSON data block that no text inside it can close: `<`, `>`, `&` and line separators are escaped."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    for character, replacement in _INVISIBLE.items():
        text = text.replace(character, replacement)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return Html(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'

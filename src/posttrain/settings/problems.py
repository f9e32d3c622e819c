"""Validation failures as one-line errors that name the setting, the value, the place and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from posttrain.errors import InputError
from posttrain.settings.schema import (
    ENVIRONMENT_KINDS,
    Path,
    allowed,
    dotted,
    field_at,
    homes_of,
    model_at,
    root_of,
    section_of,
)
from posttrain.settings.source import Source


def input_error(error: ValidationError, data: Mapping[str, Any], source: Source) -> InputError:
    """The first problem of a failed validation; a misspelt name comes before what it makes missing."""
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] != "extra_forbidden")
    places = list(dict.fromkeys(problem_path(d, data) for d in details))
    more = f" ({len(places) - 1} more to fix after it)" if len(places) > 1 else ""
    result = _describe(details[0], data, source)
    return InputError(result.setting, result.value, result.problem, result.fix + more)


def problem_path(detail: ErrorDetails, data: Mapping[str, Any]) -> Path:
    """Path of the setting a failure is about, without the branch names pydantic adds for unions."""
    location = list(detail["loc"])
    if location[:1] == ["environments"] and len(location) > 2:
        del location[2]
    path: list[str] = []
    node: Any = data
    for part in location:
        if isinstance(node, Mapping) and part in node:
            node = node[part]
            path.append(str(part))
        elif detail["type"] == "missing" and part == location[-1]:
            path.append(str(part))
    return tuple(path)


def unknown_name(path: Path, value: object, data: Mapping[str, Any], source: Source) -> InputError:
    """An unknown setting: names the nearest valid one."""
    where = source.where(path)
    name = path[len(path) - 1]
    model = model_at(path[:-1], data)
    names = list(model.model_fields) if model else []
    prefix = dotted(path[:-1]) + "." if len(path) > 1 else ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    homes = homes_of(name, root_of(data))
    if homes:
        fix = f"It belongs elsewhere: {' or '.join(homes)}."
    elif close:
        fix = f"Did you mean {prefix}{close[0]}?"
    else:
        fix = f"{'Settings of ' + dotted(path[:-1]) if prefix else 'Sections'}: {', '.join(names)}."
    return InputError(dotted(path), value, f"there is no such setting{where}", fix)


def _describe(detail: ErrorDetails, data: Mapping[str, Any], source: Source) -> InputError:
    path = problem_path(detail, data)
    value, kind, where = detail["input"], detail["type"], source.where(path)
    if kind == "extra_forbidden":
        return unknown_name(path, value, data, source)
    if kind == "missing":
        path = _first_required(path, data)
        return InputError(dotted(path), None, f"is required{where}", f"Set it to {_allowed_at(path, data)}.")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        given = value.get("kind") if isinstance(value, Mapping) else None
        close = difflib.get_close_matches(str(given), ENVIRONMENT_KINDS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        fix = f"Set it to one of {', '.join(repr(k) for k in ENVIRONMENT_KINDS)}.{hint}"
        problem = "is required" if given is None else "there is no such kind of environment"
        return InputError(dotted((*path, "kind")), given, problem + source.where((*path, "kind")), fix)
    if kind == "value_error":
        return InputError(
            dotted(path), value, detail["msg"].removeprefix("Value error, ") + where, "Change one of them."
        )
    if dotted(path) == "environments" and not value:
        return InputError("environments", value, f"no environment is given{where}", "Add a table [environments.NAME].")
    return InputError(dotted(path), value, f"this value is not allowed{where}", f"Set it to {_allowed_at(path, data)}.")


def _first_required(path: Path, data: Mapping[str, Any]) -> Path:
    info = field_at(path, data)
    model = section_of(info.annotation) if info else None
    required = [name for name, inner in model.model_fields.items() if inner.is_required()] if model else []
    return (*path, required[0]) if required else path


def _allowed_at(path: Path, data: Mapping[str, Any]) -> str:
    for length in range(len(path), 0, -1):
        info = field_at(path[:length], data)
        if info is not None:
            return allowed(info)
    return "a table of settings"

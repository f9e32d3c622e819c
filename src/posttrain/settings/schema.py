"""Walking the settings tree: what may stand at a path, and how to say it in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from posttrain.settings.environments import EnvironmentSettings
from posttrain.settings.field import Section
from posttrain.settings.fixed import FixedSettings
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.tree import Settings

Path = tuple[str, ...]

ENVIRONMENT_KINDS: dict[str, type[Section]] = {
    str(model.model_fields["kind"].default): model for model in get_args(get_args(EnvironmentSettings)[0])
}
"""The models of ``[environments.NAME]`` by their ``kind``."""


def is_fixed(data: Mapping[str, Any]) -> bool:
    """Whether plain data is of a run on fixed data: its algorithm is one, or it has rows and no environment."""
    policy = data.get("policy")
    algorithm = policy.get("algorithm") if isinstance(policy, Mapping) else None
    rows_alone = "data" in data and "environments" not in data
    return (isinstance(algorithm, str) and algorithm in FIXED_ROWS) or rows_alone


def root_of(data: Mapping[str, Any]) -> type[Settings] | type[FixedSettings]:
    """Which tree plain data fills."""
    return FixedSettings if is_fixed(data) else Settings


def dotted(path: Path) -> str:
    """A path as it is written on the command line."""
    return ".".join(path)


def section_of(annotation: Any) -> type[Section] | None:
    """The settings table an annotation stands for, looking through ``| None``; ``None`` for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def model_at(path: Path, data: Mapping[str, Any]) -> type[Section] | None:
    """The model of the table at ``path``; ``data`` decides the kind of an environment. ``None``: no closed table."""
    model: type[Section] | None = root_of(data)
    node: Any = data
    position = 0
    while position < len(path) and model is not None:
        key = path[position]
        node = node.get(key) if isinstance(node, Mapping) else None
        if model is Settings and key == "environments":
            if len(path) == 1:
                return None
            position += 1
            node = node.get(path[position]) if isinstance(node, Mapping) else None
            kind = node.get("kind") if isinstance(node, Mapping) else None
            model = ENVIRONMENT_KINDS.get(kind) if isinstance(kind, str) else None
        else:
            info = model.model_fields.get(key)
            model = section_of(info.annotation) if info else None
        position += 1
    return model


def field_at(path: Path, data: Mapping[str, Any]) -> FieldInfo | None:
    """The declaration of the setting at ``path``, if there is one."""
    model = model_at(path[:-1], data) if path else None
    return model.model_fields.get(path[-1]) if model else None


def walk(model: type[Section], prefix: Path = ()) -> Iterator[tuple[Path, FieldInfo]]:
    """Every plain setting below a table, in order of declaration. ``environments`` is left to its kinds."""
    for name, info in model.model_fields.items():
        inner = section_of(info.annotation)
        if inner is not None:
            yield from walk(inner, (*prefix, name))
        elif (*prefix, name) != ("environments",):
            yield (*prefix, name), info


def homes_of(name: str, root: type[Section] = Settings) -> list[str]:
    """Dotted names of every setting called ``name``, wherever it stands in the tree ``root``."""
    found = [dotted(path) for path, _ in walk(root) if path[-1] == name]
    if root is Settings and any(name in model.model_fields for model in ENVIRONMENT_KINDS.values()):
        found.append(f"environments.NAME.{name}")
    return found


def allowed(info: FieldInfo) -> str:
    """What a setting accepts, in words: ``"auto" or an integer >= 1``."""
    return _words(info.annotation, tuple(info.metadata))


def _words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner: list[Any] = []
        for extra in arguments[1:]:
            inner.extend(extra.metadata if isinstance(extra, FieldInfo) else [extra])
        return _words(arguments[0], (*metadata, *inner))
    if origin in (Union, UnionType):
        return " or ".join(_words(a, metadata) for a in arguments if a is not NoneType)
    if origin is Literal:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in arguments)
    if origin is tuple:
        return f"a list, each {_words(arguments[0])}"
    if origin is dict or annotation is dict:
        return "a table"
    if section_of(annotation) is not None:
        return "a table"
    noun = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}.get(annotation, "a value")
    return noun + _limits(metadata)


def _limits(metadata: tuple[Any, ...]) -> str:
    texts: list[str] = []
    for item in metadata:
        for kind, attribute, sign in (
            (annotated_types.Ge, "ge", ">="),
            (annotated_types.Gt, "gt", ">"),
            (annotated_types.Le, "le", "<="),
            (annotated_types.Lt, "lt", "<"),
        ):
            if isinstance(item, kind):
                texts.append(f"{sign} {getattr(item, attribute):g}")
        pattern = getattr(item, "pattern", None)
        if isinstance(pattern, str):
            texts.append(f"that matches {pattern}")
    return " " + " and ".join(texts) if texts else ""

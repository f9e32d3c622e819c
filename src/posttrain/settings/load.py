"""From a TOML file and command-line overrides to validated settings."""

from __future__ import annotations

import json
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from posttrain.errors import InputError
from posttrain.settings.overrides import Override, merge, parse_overrides
from posttrain.settings.problems import input_error, problem_path
from posttrain.settings.source import Source, key_lines
from posttrain.settings.tree import Settings


def load_settings(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file, put ``--section.key value`` overrides in, validate.

    Raises InputError naming setting, value, file and line, and the fix.
    """
    file = pathlib.Path(path)
    text = _read(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("settings file", str(file), f"is not valid TOML: {error}", "Correct that line.") from error
    return settings_from_mapping(data, overrides, Source(str(file), key_lines(text)))


def settings_from_mapping(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: Source | None = None
) -> Settings:
    """Validate plain data, for instance the settings stored in a run directory. Raises InputError."""
    origin = source or Source()
    given = parse_overrides(overrides)
    origin = Source(origin.file, origin.lines, {override.path: override.text for override in given})
    merged = merge(data, given)
    try:
        return _validate(merged)
    except ValidationError as error:
        as_typed = merge(merged, _meant_as_text(error, merged, given))
        if as_typed == merged:
            raise input_error(error, merged, origin) from None
    try:
        return _validate(as_typed)
    except ValidationError as error:
        raise input_error(error, as_typed, origin) from None


def _validate(data: Mapping[str, Any]) -> Settings:
    # Strict JSON mode: no "8" for 8 and no true for 1, while lists become tuples and 1 may stand for 1.0.
    return Settings.model_validate_json(json.dumps(data, default=str), strict=True)


def _meant_as_text(error: ValidationError, data: Mapping[str, Any], given: Sequence[Override]) -> list[Override]:
    """Overrides such as ``--run.name 2024`` whose setting wants the text itself, not the number."""
    wanted = {problem_path(d, data) for d in error.errors(include_url=False) if d["type"] == "string_type"}
    return [
        Override(o.path, o.text, o.text)
        for o in given
        if o.path in wanted and isinstance(o.value, (int, float)) and not isinstance(o.value, bool)
    ]


def _read(file: pathlib.Path) -> str:
    if file.is_dir():
        raise InputError("settings file", str(file), "is a directory", "Name a TOML file.")
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("settings file", str(file), "does not exist", "Name a TOML file, see configs/.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("settings file", str(file), f"cannot be read: {error}", "Name a readable TOML file.") from None

"""From a TOML file and command-line overrides to validated settings."""

from __future__ import annotations

import json
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from posttrain.errors import InputError
from posttrain.settings.fixed import FixedSettings
from posttrain.settings.overrides import Override, merge, parse_overrides
from posttrain.settings.problems import input_error, problem_path
from posttrain.settings.schema import root_of
from posttrain.settings.source import Source, key_lines
from posttrain.settings.tree import Settings


def load_settings(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Settings:
    """Read the settings file of a run that samples, put ``--section.key value`` overrides in, validate.

    Raises InputError naming setting, value, file and line, and the fix.
    """
    return _samples(load_any_settings(path, overrides))


def load_any_settings(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Settings | FixedSettings:
    """As :func:`load_settings`, for a run on fixed data too; the algorithm says which it is."""
    file = pathlib.Path(path)
    text = _read(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("settings file", str(file), f"is not valid TOML: {error}", "Correct that line.") from error
    return any_settings_from_mapping(data, overrides, Source(str(file), key_lines(text)))


def settings_from_mapping(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: Source | None = None
) -> Settings:
    """Validate plain data, for instance the settings stored in a run directory. Raises InputError."""
    return _samples(any_settings_from_mapping(data, overrides, source))


def any_settings_from_mapping(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: Source | None = None
) -> Settings | FixedSettings:
    """As :func:`settings_from_mapping`, for a run on fixed data too."""
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


def _samples(settings: Settings | FixedSettings) -> Settings:
    if isinstance(settings, Settings):
        return settings
    problem = "trains on fixed data, and this wants a run that samples from environments"
    raise InputError("policy.algorithm", settings.policy.algorithm, problem, "Give [environments.NAME] and its rows.")


def _validate(data: Mapping[str, Any]) -> Settings | FixedSettings:
    # Strict JSON mode: no "8" for 8 and no true for 1, while lists become tuples and 1 may stand for 1.0.
    return root_of(data).model_validate_json(json.dumps(data, default=str), strict=True)


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

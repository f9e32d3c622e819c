"""A file that chains runs: each stage has its own settings file, and may begin from an earlier stage's model."""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from posttrain.errors import InputError
from posttrain.settings.field import Section, setting
from posttrain.settings.fixed import FixedSettings, check_fixed_settings
from posttrain.settings.load import any_settings_from_mapping
from posttrain.settings.overrides import Override, merge
from posttrain.settings.rules import check_settings
from posttrain.settings.tree import Settings

REFERENCE = "stage:"
"""``stage:NAME`` as a value stands for the model folder of that stage."""


class StageSettings(Section):
    """``[[stage]]``: one run of the chain."""

    name: str = setting(
        ...,
        "Name of the stage, for its folder and for `stage:NAME`.",
        reason="others refer to it",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
    )
    config: str = setting(..., "Settings file of the run.", reason="a stage is a run like any other", min_length=1)
    settings: dict[str, Any] = setting(
        {},
        'Values that replace those of the file, by dotted name: `"model.path" = "stage:sft"`.',
        reason="a file of its own can be trained alone, too",
    )


class StagesSettings(Section):
    """A chain of runs."""

    name: str = setting("stages", "Name of the chain; its directory is `NAME-DATE` under `root`.", reason="short")
    root: str = setting("runs", "Directory of chains, unless `--run` names one.", reason="beside the work")
    stage: tuple[StageSettings, ...] = setting(..., "The runs, in order.", reason="there is no default", min_length=1)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its settings as plain data, with ``stage:NAME`` still in them."""

    name: str
    data: Mapping[str, Any]

    @property
    def started_from(self) -> str:
        """``model.path`` as written: ``stage:NAME``, or where the model lies."""
        return str(self.data["model"]["path"])

    def resolved(self, models: Mapping[str, str]) -> Settings | FixedSettings:
        """Settings with every ``stage:NAME`` replaced by ``models[NAME]``, checked. Raises InputError."""
        settings = any_settings_from_mapping(cast("dict[str, Any]", _replaced(self.data, models)))
        if isinstance(settings, FixedSettings):
            check_fixed_settings(settings)
        else:
            check_settings(settings)
        return settings


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A chain whose settings have all been checked."""

    name: str
    root: str
    stages: tuple[Stage, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON data; :func:`plan_from_mapping` reads it back equal."""
        stages = [{"name": stage.name, "data": dict(stage.data)} for stage in self.stages]
        return {"name": self.name, "root": self.root, "stages": stages}


def is_stages_file(path: str | pathlib.Path) -> bool:
    """Whether a file chains runs: it has ``[[stage]]``. A file that cannot be read is none, and says so elsewhere."""
    try:
        return "stage" in tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_stages(path: str | pathlib.Path) -> StagePlan:
    """Read the chain and every settings file in it. Raises InputError before anything is started."""
    try:
        written = StagesSettings.model_validate(tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise InputError(place, detail["input"], detail["msg"], "See the how-to page on stages.") from None
    plan = StagePlan(written.name, written.root, tuple(_stage(stage) for stage in written.stage))
    return _checked(plan)


def plan_from_mapping(data: Mapping[str, Any]) -> StagePlan:
    """Read back what :meth:`StagePlan.to_mapping` wrote. Raises InputError if it is damaged."""
    try:
        stages = tuple(Stage(str(s["name"]), dict(s["data"])) for s in data["stages"])
        return _checked(StagePlan(str(data["name"]), str(data["root"]), stages))
    except (KeyError, TypeError) as error:
        raise InputError("stages.json", str(error), "is damaged", "Start the chain again.") from error


def _stage(section: StageSettings) -> Stage:
    file = pathlib.Path(section.config)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"stage {section.name}", section.config, f"cannot be read: {error}", "Name a TOML file."
        ) from None
    given = [Override(tuple(name.split(".")), value, str(value)) for name, value in section.settings.items()]
    merged = merge(data, given)
    if not isinstance(merged.get("model"), dict) or not isinstance(merged["model"].get("path"), str):
        raise InputError(f"stage {section.name}", section.config, "names no model.path", "Give one, or stage:NAME.")
    return Stage(section.name, merged)


def _checked(plan: StagePlan) -> StagePlan:
    earlier: dict[str, str] = {}
    for stage in plan.stages:
        where = f"stage {stage.name}"
        if stage.name in earlier:
            raise InputError(where, stage.name, "two stages have this name", "Rename one.")
        for name in _references(stage.data):
            if name not in earlier:
                problem = "names a stage that does not come before it"
                raise InputError(where, f"{REFERENCE}{name}", problem, f"Earlier: {', '.join(earlier) or 'none'}.")
        stage.resolved(earlier)
        earlier[stage.name] = f"/stages/{stage.name}/model"
    return plan


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith(REFERENCE):
        yield value.removeprefix(REFERENCE)
    elif isinstance(value, Mapping):
        for inner in cast("Mapping[str, Any]", value).values():
            yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from _references(inner)


def _replaced(value: Any, models: Mapping[str, str]) -> Any:
    if isinstance(value, str) and value.startswith(REFERENCE):
        return models[value.removeprefix(REFERENCE)]
    if isinstance(value, Mapping):
        return {key: _replaced(inner, models) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, models) for inner in cast("list[Any]", value)]
    return value

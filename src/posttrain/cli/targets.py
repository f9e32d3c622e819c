"""What ``posttrain eval`` evaluates: a run's final model, or any model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import InputError
from posttrain.rundir.directory import RunDirectory
from posttrain.settings import Settings, load_settings, settings_from_mapping
from posttrain.settings.rules import check_settings


def split_config(arguments: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Tell an optional settings file from the overrides behind it."""
    if arguments and not arguments[0].startswith("--"):
        return Path(arguments[0]), tuple(arguments[1:])
    return None, tuple(arguments)


def evaluation_settings(target: str, config: Path | None, overrides: Sequence[str]) -> Settings:
    """Settings whose ``model.path`` is the model to evaluate.

    Raises InputError if ``target`` is a model and there is no ``config``, or a run without a final model.
    """
    if (Path(target) / "run.json").is_file():
        run = RunDirectory.open(Path(target))
        model = str(run.model_path)
        if not (run.model_path / "config.json").is_file():
            raise InputError("run", target, "has no final model yet", f"Finish it first: posttrain resume {target}")
        settings = _settings_of(run, overrides) if config is None else load_settings(config, overrides)
    elif config is None:
        raise InputError(
            "eval",
            target,
            "is no run directory, so it is taken as a model and needs tasks",
            f"Name a settings file: posttrain eval {target} CONFIG",
        )
    else:
        model, settings = target, load_settings(config, overrides)
    # LoRA belongs to training: the final model holds the merged weights.
    path = settings.model.model_copy(update={"path": model, "tokenizer": None, "lora": None})
    chosen = settings.model_copy(update={"model": path})
    check_settings(chosen)
    return chosen


def _settings_of(run: RunDirectory, overrides: Sequence[str]) -> Settings:
    """What the user wrote, without what was chosen on the machine of the run: this one may be another."""
    stored = run.info().settings
    return settings_from_mapping({name: value for name, value in stored.items() if name != "resolved"}, overrides)

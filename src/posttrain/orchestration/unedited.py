"""A run goes on with the settings it was begun with: values edited into ``run.json`` are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from posttrain.errors import InputError
from posttrain.rundir.checkpoints import DamagedCheckpointError, list_checkpoints, read_manifest
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import RunInfo
from posttrain.settings.schema import dotted

SEED = "run.seed"
_USED = "settings.resolved.settings"
_MAY_DIFFER = "faultmap"  # who watches a run may be chosen anew


def check_unedited(run: RunDirectory) -> None:
    """Raise InputError, naming setting, both values and the fix, if ``run.json`` contradicts itself or a checkpoint.

    It holds every setting twice, as written and as resolved, and the seed once more; checkpoints hold the seed.
    """
    info = run.info()
    _check_seed(run, info)
    written = {name: value for name, value in info.settings.items() if name not in ("resolved", _MAY_DIFFER)}
    used = info.settings.get("resolved", {}).get("settings", {})
    for path, there, here in _differences(written, {n: v for n, v in used.items() if n != _MAY_DIFFER}):
        name = dotted(path)
        raise InputError(
            name,
            there,
            f"{run.info_path} was edited: it gives {there!r} as settings.{name} and {here!r} as {_USED}.{name}",
            "A resumed run goes on with what it began with: write that value in both, or start a new run.",
        )


def _check_seed(run: RunDirectory, info: RunInfo) -> None:
    used = info.settings.get("resolved", {}).get("settings", {})
    given = {
        "seed": info.seed,
        f"settings.{SEED}": info.settings.get("run", {}).get("seed"),
        f"{_USED}.{SEED}": used.get("run", {}).get("seed"),
    }
    began = _seed_of_checkpoints(run.checkpoints_path)
    if began is None:
        if len(set(given.values())) > 1:
            listed = ", ".join(f"{value!r} as {place}" for place, value in given.items())
            raise InputError(
                SEED,
                given[f"settings.{SEED}"],
                f"{run.info_path} was edited: it gives {listed}",
                "Write the seed the run began with everywhere, or start a new run.",
            )
        return
    for place, value in given.items():
        if value != began:
            raise InputError(
                SEED,
                value,
                f"the run and its checkpoints began with {began}, and {run.info_path} was edited at {place}",
                f"Set it back to {began}, or start a new run: posttrain train CONFIG --{SEED} {value}",
            )


def _seed_of_checkpoints(folder: Path) -> int | None:
    """The seed of the newest checkpoint that tells it."""
    for path in reversed(list_checkpoints(folder)):
        try:
            seed = read_manifest(path).metadata.get("seed")
        except DamagedCheckpointError:
            continue
        if isinstance(seed, int):
            return seed
    return None


def _differences(
    left: Mapping[str, Any], right: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every leaf that differs, with its two values; ``None`` stands for one that is not there."""
    for name in {**left, **right}:
        a, b = left.get(name), right.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b), (*path, name))
        elif a != b:
            yield (*path, name), a, b

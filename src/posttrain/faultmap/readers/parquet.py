"""Parquet: the completions TRL saves, and plain tables of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.faultmap.history import Course, Sample
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.source import Source, unreadable
from posttrain.faultmap.readers.structured import Parsed
from posttrain.faultmap.readers.table import MOST_VALUES, TableBuilder

_MOST_ROWS = 200_000
_MOST_FILES = 5_000
_BATCH = 4096


def is_completions(path: Path) -> bool:
    """True if a Parquet file has the columns of TRL's completions. Raises InputError where it is damaged."""
    names = set(_schema(path).names)
    return {"step", "prompt", "completion"} <= names


def read_parquet(source: Source) -> Parsed:
    """A table whose numeric columns are metrics. Raises InputError where it has none, or is damaged."""
    schema = _schema(source.path)
    names = [f.name for f in schema if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]
    if not names:
        raise unreadable(source.path, "has no column of numbers", "Give a table with one row a step.")
    builder = TableBuilder()
    try:
        with pq.ParquetFile(source.path) as file:
            if file.metadata.num_rows * len(names) > MOST_VALUES:
                raise unreadable(source.path, f"holds more than {MOST_VALUES:,} values", "Give fewer rows or columns.")
            for batch in file.iter_batches(_BATCH, columns=names):
                for row in batch.to_pylist():
                    builder.add(row)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(source.path, error) from error
    return Parsed(builder.build(), "a Parquet table", null_is_nan=False)


class Completions:
    """Completions that TRL saved: one file a step. They are read when asked for."""

    def __init__(self, files: Sequence[Path], remarks: Remarks) -> None:
        self._remarks = remarks
        self._files: dict[int, Path] = {}
        for path in sorted(files)[:_MOST_FILES]:
            step = self._step_of(path)
            if step is not None:
                self._files[step] = path

    def steps(self) -> Sequence[int]:
        """Steps that have a file."""
        return sorted(self._files)

    def read(self, step: int) -> Sequence[Sample]:
        """Samples of a step. A member's group are the rows beside it with the same prompt."""
        path = self._files.get(step)
        rows = self._rows(path) if path is not None else []
        samples: list[Sample] = []
        group, prompt = -1, None
        for row in rows:
            text = _text(row.get("prompt"))
            group, prompt = (group, prompt) if text == prompt else (group + 1, text)
            parts = _parts(row)
            reward = float(sum(parts.values())) if parts else None
            samples.append(Sample(step, text, _text(row.get("completion")), reward, parts, f"{step}/{group}"))
        return samples

    def _step_of(self, path: Path) -> int | None:
        digits = path.stem.rpartition("_")[2]
        if digits.isascii() and digits.isdigit() and len(digits) < 16:
            return int(digits)
        rows = self._rows(path)
        step = rows[0].get("step") if rows else None
        return step if isinstance(step, int) and 0 <= step < 2**53 else None

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        try:
            with pq.ParquetFile(path) as file:
                if file.metadata.num_rows > _MOST_ROWS:
                    self._remarks.problem(f"{path.name}: more than {_MOST_ROWS:,} completions; left out.")
                    return []
                return cast("list[dict[str, Any]]", file.read().to_pylist())
        except (OSError, pa.ArrowException, ValueError) as error:
            self._remarks.problem(f"{path.name}: is not readable Parquet ({_first_line(error)}).")
            return []


def courses_of_completions(completions: Completions) -> dict[str, Course]:
    """What saved completions say by themselves: rewards by function, groups without variance, repeated answers."""
    found: dict[str, dict[int, float]] = {}
    for step in completions.steps():
        for name, value in _signals(completions.read(step)).items():
            found.setdefault(name, {})[step] = value
    return {
        name: Course(
            name, np.array(sorted(points), np.int64), np.array([points[s] for s in sorted(points)], np.float64)
        )
        for name, points in found.items()
    }


def _signals(samples: Sequence[Sample]) -> dict[str, float]:
    if not samples:
        return {}
    values: dict[str, float] = {}
    for part in sorted({name for sample in samples for name in sample.parts}):
        numbers = np.array([sample.parts[part] for sample in samples if part in sample.parts])
        values[f"reward/part/{part}/mean"] = float(numbers.mean())
        values[f"reward/part/{part}/std"] = float(numbers.std())
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id or "", []).append(sample)
    several = [members for members in groups.values() if len(members) > 1]
    rewards = np.array([sample.reward for sample in samples if sample.reward is not None])
    if rewards.size:
        values |= {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    if several:
        values["rollout/unique_share"] = float(np.mean([len({m.completion for m in g}) / len(g) for g in several]))
        if rewards.size:
            values["reward/zero_variance_groups"] = float(np.mean([len({m.reward for m in g}) == 1 for g in several]))
    return values


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    """Columns of numbers but for step and advantage: the reward functions, without those that returned none."""
    return {
        name: float(value)
        for name, value in row.items()
        if name not in ("step", "advantage", "advantages")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and np.isfinite(value)
    }


def _text(value: object) -> str:
    """A prompt or completion as text; a conversation is its messages, one after the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        messages = cast("list[object]", value)
        contents = [cast("dict[str, object]", m).get("content") for m in messages if isinstance(m, dict)]
        return "\n".join(str(content) for content in contents if content is not None)
    return ""


def _schema(path: Path) -> Any:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> Exception:
    return unreadable(path, f"is not readable Parquet ({_first_line(error)})", "Copy it again.")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

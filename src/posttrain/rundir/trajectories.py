"""Trajectories on disk, read back without loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.rundir.files import DamagedFileError, replace_atomically
from posttrain.rundir.schema import ARROW_SCHEMA, LATER, SCHEMA_VERSION
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    RecordError,
    Role,
    SamplingParams,
    Segment,
    Task,
    Timings,
    TokenColumns,
    Trajectory,
)

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """A trajectory with what the file adds for readers."""

    trajectory: Trajectory
    completion: str | None
    group_discard_reason: str | None


def write_trajectories(
    path: Path,
    trajectories: Sequence[Trajectory],
    completions: Sequence[str] | None = None,
    discard_reasons: Mapping[str, str] | None = None,
) -> None:
    """Write one Parquet file, replacing an older one atomically.

    ``completions`` are the decoded texts, one per trajectory, for people and graders; ``discard_reasons`` maps
    a group id to the reason its group was not trained. Raises RecordError on a list out of line or on task
    data that JSON cannot hold.
    """
    if completions is not None and len(completions) != len(trajectories):
        raise RecordError(f"{len(completions)} completions for {len(trajectories)} trajectories")
    table = _table(trajectories, completions, discard_reasons or {})

    def write(temporary: Path) -> None:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=False, write_statistics=False)

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, write)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read the trajectories of one file. Raises DamagedFileError where it cannot be read."""
    return [stored.trajectory for stored in read_stored(path)]


def read_stored(path: Path) -> list[StoredTrajectory]:
    """Read one file with the texts and the fate of the groups. Raises DamagedFileError where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except FileNotFoundError as error:
        raise DamagedFileError(path, "does not exist") from error
    except (OSError, pa.ArrowException) as error:
        raise DamagedFileError(path, f"is not a readable Parquet file ({_first_line(error)})") from error
    for name in LATER:
        if name not in table.column_names:
            table = table.append_column(ARROW_SCHEMA.field(name), pa.nulls(len(table), ARROW_SCHEMA.field(name).type))
    missing = [name for name in ARROW_SCHEMA.names if name not in table.column_names]
    if missing:
        raise DamagedFileError(path, f"is not a trajectory file: column {missing[0]!r} is missing")
    versions = set(table.column("schema_version").to_pylist())
    if versions - set(range(1, SCHEMA_VERSION + 1)):
        raise DamagedFileError(path, f"has schema version {max(versions)}; this version reads up to {SCHEMA_VERSION}")
    try:
        return _stored_rows(table)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise DamagedFileError(path, f"holds a row that contradicts itself ({_first_line(error)})") from error


def _table(
    trajectories: Sequence[Trajectory], completions: Sequence[str] | None, discard_reasons: Mapping[str, str]
) -> pa.Table:
    task_json: dict[int, tuple[str, str, str]] = {}
    for trajectory in trajectories:
        if id(trajectory.task) not in task_json:
            task_json[id(trajectory.task)] = _task_json(trajectory.task)

    def column(get: Callable[[Trajectory], Any]) -> list[Any]:
        return [get(t) for t in trajectories]

    def text(get: Callable[[Trajectory], str | None]) -> list[str | None]:
        return [None if (value := get(t)) is None else _encodable(value) for t in trajectories]

    n = len(trajectories)
    columns: dict[str, Any] = {
        "schema_version": [SCHEMA_VERSION] * n,
        "trajectory_id": text(lambda t: t.trajectory_id),
        "group_id": text(lambda t: t.group_id),
        "role": column(lambda t: t.role.value),
        "parent_id": text(lambda t: t.parent_id),
        "shared_prefix_tokens": column(lambda t: t.shared_prefix_tokens),
        "pair_id": [None] * n,
        "pair_side": [None] * n,
        "attempt": column(lambda t: t.attempt),
        "retry": column(lambda t: t.retry),
        "task_id": text(lambda t: t.task.task_id),
        "environment": text(lambda t: t.task.environment),
        "messages": column(lambda t: task_json[id(t.task)][0]),
        "gold": column(lambda t: task_json[id(t.task)][1]),
        "task_metadata": column(lambda t: task_json[id(t.task)][2]),
        "completion": [None] * n if completions is None else [_encodable(c) for c in completions],
        "finish_reason": column(lambda t: t.finish_reason and t.finish_reason.value),
        "failure": text(lambda t: t.failure),
        "grade_status": column(lambda t: t.grade and t.grade.status.value),
        "reward": column(lambda t: t.grade.reward if t.grade else None),
        "reward_parts": column(lambda t: [(_encodable(k), v) for k, v in t.grade.parts.items()] if t.grade else None),
        "grade_reason": text(lambda t: t.grade.reason if t.grade else None),
        "group_discard_reason": text(lambda t: discard_reasons.get(t.group_id)),
        "max_new_tokens": column(lambda t: t.sampling.max_new_tokens),
        "temperature": column(lambda t: t.sampling.temperature),
        "top_p": column(lambda t: t.sampling.top_p),
        "top_k": column(lambda t: t.sampling.top_k),
        "seed": column(lambda t: t.sampling.seed),
        "stop_token_ids": column(lambda t: list(t.sampling.stop_token_ids)),
        "ignore_stop": column(lambda t: t.sampling.ignore_stop),
        "submitted_at": column(lambda t: t.timings.submitted),
        "first_token_at": column(lambda t: t.timings.first_token),
        "finished_at": column(lambda t: t.timings.finished),
        "graded_at": column(lambda t: t.timings.graded),
        "segment_length": column(lambda t: [len(s) for s in t.segments]),
        "segment_origin": column(lambda t: [int(s.origin) for s in t.segments]),
        "segment_policy_version": column(lambda t: [s.policy_version for s in t.segments]),
    }
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values, ARROW_SCHEMA.field(name).type)
        except (pa.ArrowException, OverflowError) as error:
            raise RecordError(f"column {name} does not hold its values: {_first_line(error)}") from error
    arrays |= _token_arrays(trajectories)
    return pa.Table.from_arrays([arrays[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)


def _token_arrays(trajectories: Sequence[Trajectory]) -> dict[str, pa.Array]:
    versions = [t.policy_versions for t in trajectories]
    columns: dict[str, list[npt.NDArray[Any] | None]] = {
        "token_id": [t.token_ids for t in trajectories],
        "origin": [t.origins for t in trajectories],
        "policy_version": list(versions),
        "sampler_logprob": [t.sampler_logprobs for t in trajectories],
        "trainer_logprob": [t.columns.trainer_logprob for t in trajectories],
        "reference_logprob": [t.columns.reference_logprob for t in trajectories],
        "advantage": [t.columns.advantage for t in trajectories],
        "loss_mask": [t.columns.loss_mask for t in trajectories],
        "value": [t.columns.value for t in trajectories],
        "teacher_logprob": [t.columns.teacher_logprob for t in trajectories],
    }
    arrays: dict[str, pa.Array] = {}
    for name, parts in columns.items():
        for trajectory, part in zip(trajectories, parts, strict=True):
            if part is not None and part.shape != (len(trajectory),):
                raise RecordError(
                    f"{trajectory.trajectory_id}: column {name} has shape {part.shape}, expected ({len(trajectory)},)"
                )
        arrays[name] = _list_array(name, parts)
    return arrays


_NAN_IS_NULL = ("sampler_logprob", "trainer_logprob", "reference_logprob", "value", "teacher_logprob")


def _list_array(name: str, parts: Sequence[npt.NDArray[Any] | None]) -> pa.Array:
    """One list per row without a Python object per token; a ``None`` part is a null row."""
    kind = ARROW_SCHEMA.field(name).type
    present = [part for part in parts if part is not None]
    values = np.concatenate(present) if present else np.empty(0, kind.value_type.to_pandas_dtype())
    missing = None
    if name == "policy_version":
        missing = values < 0
    elif name in _NAN_IS_NULL:
        missing = np.isnan(values)
    lengths = [0 if part is None else part.shape[0] for part in parts]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = pa.array([part is None for part in parts], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, kind.value_type, mask=missing), type=kind, mask=nulls
    )


def _stored_rows(table: pa.Table) -> list[StoredTrajectory]:
    token_names = [name for name in ARROW_SCHEMA.names if name in _TOKEN_DTYPES]
    scalars = table.select([name for name in ARROW_SCHEMA.names if name not in _TOKEN_DTYPES]).to_pylist()
    tokens = {name: _rows_of(table.column(name), name) for name in token_names}
    return [
        StoredTrajectory(
            _trajectory(row, {name: tokens[name][i] for name in token_names}),
            row["completion"],
            row["group_discard_reason"],
        )
        for i, row in enumerate(scalars)
    ]


_TOKEN_DTYPES: Mapping[str, Any] = {
    "token_id": np.int32,
    "sampler_logprob": np.float32,
    "trainer_logprob": np.float32,
    "reference_logprob": np.float32,
    "advantage": np.float32,
    "loss_mask": np.bool_,
    "value": np.float32,
    "teacher_logprob": np.float32,
    "origin": np.int8,
    "policy_version": np.int64,
}


def _rows_of(column: pa.ChunkedArray, name: str) -> list[npt.NDArray[Any] | None]:
    """Split a list column into one array per row; nulls among log-probs and values become NaN, among versions -1."""
    dtype = _TOKEN_DTYPES[name]
    rows: list[npt.NDArray[Any] | None] = []
    for chunk in column.chunks:
        values = chunk.values
        if values.null_count:
            if name == "policy_version":
                values = values.fill_null(-1)
            elif name not in _NAN_IS_NULL:
                raise ValueError(f"column {name} has a token without a value")
        flat = np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
        offsets = chunk.offsets.to_numpy()
        valid = chunk.is_valid().to_pylist()
        for i, is_present in enumerate(valid):
            rows.append(flat[offsets[i] : offsets[i + 1]].copy() if is_present else None)
    return rows


def _trajectory(row: _Row, tokens: Mapping[str, npt.NDArray[Any] | None]) -> Trajectory:
    trajectory = Trajectory(
        trajectory_id=row["trajectory_id"],
        group_id=row["group_id"],
        task=Task(
            task_id=row["task_id"],
            messages=tuple(Message(**message) for message in json.loads(row["messages"])),
            gold=json.loads(row["gold"]),
            environment=row["environment"],
            metadata=json.loads(row["task_metadata"]),
        ),
        sampling=SamplingParams(
            max_new_tokens=row["max_new_tokens"],
            temperature=row["temperature"],
            top_p=row["top_p"],
            top_k=row["top_k"],
            seed=row["seed"],
            stop_token_ids=tuple(row["stop_token_ids"]),
            ignore_stop=row["ignore_stop"],
        ),
        role=Role(row["role"]),
        segments=_segments(row, tokens),
        finish_reason=None if row["finish_reason"] is None else FinishReason(row["finish_reason"]),
        grade=_grade(row),
        timings=Timings(row["submitted_at"], row["first_token_at"], row["finished_at"], row["graded_at"]),
        retry=row["retry"],
        attempt=row["attempt"],
        parent_id=row["parent_id"],
        shared_prefix_tokens=row["shared_prefix_tokens"],
        failure=row["failure"],
    )
    trajectory.set_columns(
        TokenColumns(
            trainer_logprob=tokens["trainer_logprob"],
            reference_logprob=tokens["reference_logprob"],
            advantage=tokens["advantage"],
            loss_mask=tokens["loss_mask"],
            value=tokens["value"],
            teacher_logprob=tokens["teacher_logprob"],
        )
    )
    return trajectory


def _segments(row: _Row, tokens: Mapping[str, npt.NDArray[Any] | None]) -> list[Segment]:
    ids, logprobs = tokens["token_id"], tokens["sampler_logprob"]
    if ids is None or logprobs is None or sum(row["segment_length"]) != ids.size or logprobs.size != ids.size:
        raise ValueError(f"{row['trajectory_id']}: segments, token ids and log-probs are out of line")
    segments: list[Segment] = []
    start = 0
    borders = zip(row["segment_length"], row["segment_origin"], row["segment_policy_version"], strict=True)
    for length, origin, version in borders:
        part = slice(start, start + length)
        is_model = origin == Origin.MODEL
        segments.append(Segment(Origin(origin), ids[part], logprobs[part] if is_model else None, version))
        start += length
    return segments


def _grade(row: _Row) -> Grade | None:
    if row["grade_status"] is None:
        return None
    parts = cast("list[tuple[str, float | None]]", row["reward_parts"] or [])
    return Grade(GradeStatus(row["grade_status"]), row["reward"], dict(parts), row["grade_reason"] or "")


def _task_json(task: Task) -> tuple[str, str, str]:
    messages = [{"role": m.role, "content": m.content} for m in task.messages]
    try:
        return _json(messages), _json(task.gold), _json(dict(task.metadata))
    except (TypeError, ValueError) as error:
        raise RecordError(f"task {task.task_id}: gold and metadata must be JSON-compatible ({error})") from error


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_encodable(text) else json.dumps(value)


def _encodable(text: str) -> str:
    """A lone surrogate cannot be stored as UTF-8; it is written as its escape rather than dropped."""
    return text if _is_encodable(text) else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

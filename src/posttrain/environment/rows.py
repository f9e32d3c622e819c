"""Rows of a file as tasks, split into training and evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posttrain.environment.grading import check_split
from posttrain.environment.protocol import TaskSplit
from posttrain.environment.sources import Row, read_rows
from posttrain.errors import InputError
from posttrain.trajectory import Message, Task

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Which column is what. Without ``id_column`` a row is named by its number in the file."""

    prompt_column: str = "prompt"
    gold_column: str | None = "answer"
    id_column: str | None = None


def load_split(
    name: str,
    path: str | Path,
    columns: RowFormat,
    *,
    evaluation_path: str | Path | None = None,
    evaluation_fraction: float = 0.0,
    split_seed: int = 0,
) -> TaskSplit:
    """Tasks from rows. Every other column is kept in the task's metadata.

    Held out are the rows of ``evaluation_path``, or a share of ``path`` chosen by ``split_seed``: whole
    prompts, so a prompt that occurs twice is never on both sides. Raises InputError on an empty source, a
    missing column, a bad prompt, an id used twice, or a question of ``evaluation_path`` that is trained.
    """
    setting = f"environments.{name}"
    tasks = _tasks(name, f"{setting}.path", read_rows(f"{setting}.path", path), columns, "")
    if evaluation_path is None:
        return check_split(name, _by_fraction(setting, tasks, evaluation_fraction, split_seed))
    rows = read_rows(f"{setting}.evaluation_path", evaluation_path)
    held_out = _tasks(name, f"{setting}.evaluation_path", rows, columns, "evaluation-")
    trained = {task.messages: task for task in tasks}
    for task in held_out:
        if (same := trained.get(task.messages)) is not None:
            raise InputError(
                f"{setting}.evaluation_path",
                str(evaluation_path),
                f"task {task.task_id} asks the same as training task {same.task_id}",
                "Remove the question from one of the files.",
            )
    return check_split(name, TaskSplit(tuple(tasks), tuple(held_out)))


def _tasks(name: str, setting: str, rows: Sequence[Row], columns: RowFormat, prefix: str) -> list[Task]:
    seen: dict[str, Row] = {}
    tasks: list[Task] = []
    for row in rows:
        for column in (columns.prompt_column, columns.gold_column, columns.id_column):
            if column is not None and row.values.get(column) is None:
                raise InputError(
                    setting, row.place, f"has no value in column {column!r}", f"It has: {', '.join(row.values)}."
                )
        task_id = f"{name}:{prefix}{row.number}" if columns.id_column is None else str(row.values[columns.id_column])
        if task_id in seen:
            raise InputError(
                f"{setting.rpartition('.')[0]}.id_column",
                task_id,
                f"is the id of {seen[task_id].place} and of {row.place}",
                "Give every row its own id.",
            )
        seen[task_id] = row
        tasks.append(
            Task(
                task_id=task_id,
                messages=_messages(setting, row, row.values[columns.prompt_column]),
                gold=None if columns.gold_column is None else row.values[columns.gold_column],
                environment=name,
                metadata={k: v for k, v in row.values.items() if k != columns.prompt_column},
            )
        )
    return tasks


def _messages(setting: str, row: Row, prompt: Any) -> tuple[Message, ...]:
    fix = "Use text, or a list of {role, content} that does not end with the assistant."
    if isinstance(prompt, str) and prompt.strip():
        return (Message("user", prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise InputError(setting, row.place, "its prompt is neither text nor a list of messages", fix)
    messages: list[Message] = []
    for entry in cast(list[Any], prompt):
        message = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise InputError(setting, row.place, f"a prompt message is {str(entry)[:80]}", fix)
        messages.append(Message(role, content))
    if messages[-1].role == "assistant":
        raise InputError(setting, row.place, "its prompt ends with an assistant message", fix)
    return tuple(messages)


def _by_fraction(setting: str, tasks: Sequence[Task], fraction: float, seed: int) -> TaskSplit:
    prompts = list(dict.fromkeys(task.messages for task in tasks))
    count = round(fraction * len(prompts)) if fraction == 0.0 else max(1, round(fraction * len(prompts)))
    if count >= len(prompts):
        raise InputError(
            f"{setting}.evaluation_fraction",
            fraction,
            f"holds out all of the {len(prompts)} different prompts",
            "Add rows, or set it to 0.",
        )

    def order(messages: tuple[Message, ...]) -> bytes:
        text = "\0".join(f"{m.role}\0{m.content}" for m in messages)
        return hashlib.sha256(f"{seed}\0{text}".encode()).digest()

    held_out = set(sorted(prompts, key=order)[:count])
    return TaskSplit(
        tuple(t for t in tasks if t.messages not in held_out), tuple(t for t in tasks if t.messages in held_out)
    )

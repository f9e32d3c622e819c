"""In which order tasks are drawn from one or several environments.

The order is a pure function of seed, weights and task ids, stable over versions and platforms. Each
environment is passed through once per epoch without replacement, in an order of its own per epoch; the
environments take turns by weight, so any stretch of draws holds them in proportion to less than one draw
per environment.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from posttrain.environment.protocol import Environment
from posttrain.errors import InputError
from posttrain.trajectory import Task


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn task: ``epoch`` counts passes over its environment, ``draw`` the place within the pass."""

    task: Task
    epoch: int
    draw: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where drawing stands: draws taken so far from each environment. ``tasks`` identifies the task set."""

    taken: Mapping[str, int] = field(default_factory=dict)
    tasks: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {"taken": dict(self.taken), "tasks": self.tasks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cursor:
        """Inverse of ``to_json``. Raises InputError on anything else."""
        taken, tasks = data.get("taken"), data.get("tasks")
        if not isinstance(taken, dict) or not isinstance(tasks, str):
            raise InputError("cursor", data, "is not a sampling cursor", "Resume from an undamaged checkpoint.")
        counts = cast(dict[Any, Any], taken)
        if not all(isinstance(k, str) and isinstance(v, int) and v >= 0 for k, v in counts.items()):
            raise InputError("cursor", data, "is not a sampling cursor", "Resume from an undamaged checkpoint.")
        return cls(dict(counts), tasks)


class TaskSampler:
    """Draws training tasks. Holds no position: the cursor goes in and comes out.

    ``weights`` are relative shares by environment name, 1.0 where not given.
    """

    def __init__(
        self, environments: Sequence[Environment], seed: int, weights: Mapping[str, float] | None = None
    ) -> None:
        check_tasks(environments)
        self._tasks: dict[str, Sequence[Task]] = {e.name: e.tasks().train for e in environments}
        self._weights = _normalised(self._tasks, weights or {})
        self._seed = seed
        self._order: dict[str, tuple[int, list[int]]] = {}
        digest = hashlib.sha256()
        for name, tasks in self._tasks.items():
            digest.update(f"{name}\0{self._weights[name]}\0{seed}\0".encode())
            for task in tasks:
                digest.update(task.task_id.encode() + b"\0")
        self._identity = digest.hexdigest()[:16]

    def start(self) -> Cursor:
        """The cursor before the first draw."""
        return Cursor(dict.fromkeys(self._tasks, 0), self._identity)

    def draw(self, count: int, cursor: Cursor) -> tuple[list[Draw], Cursor]:
        """The next ``count`` draws and the cursor after them.

        Raises InputError if the cursor was taken with other tasks, weights or another seed.
        """
        if cursor.tasks != self._identity or set(cursor.taken) != set(self._tasks):
            raise InputError(
                "cursor",
                cursor.tasks,
                f"was taken with other tasks, weights or another seed (now {self._identity})",
                "Resume with the settings and data the run started with.",
            )
        taken = dict(cursor.taken)
        total = sum(taken.values())
        draws: list[Draw] = []
        for _ in range(count):
            total += 1
            behind = {name: self._weights[name] * total - taken[name] for name in self._tasks}
            name = max(behind, key=behind.__getitem__)
            epoch, place = divmod(taken[name], len(self._tasks[name]))
            draws.append(Draw(self._tasks[name][self._permutation(name, epoch)[place]], epoch, place))
            taken[name] += 1
        return draws, Cursor(taken, self._identity)

    def _permutation(self, name: str, epoch: int) -> list[int]:
        """Order of one pass; the latest of each environment is kept since it is asked for draw by draw."""
        known = self._order.get(name)
        if known is not None and known[0] == epoch:
            return known[1]

        def key(index: int) -> bytes:
            text = f"{self._seed}/{name}/{epoch}/{self._tasks[name][index].task_id}"
            return hashlib.blake2b(text.encode(), digest_size=16).digest()

        order = sorted(range(len(self._tasks[name])), key=key)
        self._order[name] = (epoch, order)
        return order


def check_tasks(environments: Sequence[Environment]) -> None:
    """Raise InputError if task ids are not unique over all environments, or training asks a held-out question."""
    if not environments:
        raise InputError("environments", "none", "there is nothing to train on", "Add a section [environments.NAME].")
    owner: dict[str, str] = {}
    held_out: dict[tuple[Any, ...], Task] = {}
    for environment in environments:
        split = environment.tasks()
        for task in (*split.train, *split.evaluation):
            if task.task_id in owner:
                raise InputError(
                    f"environments.{environment.name}",
                    task.task_id,
                    f"this task id is already used in environments.{owner[task.task_id]}",
                    "Give every task an id that is unique over all environments.",
                )
            owner[task.task_id] = environment.name
        held_out |= {task.messages: task for task in split.evaluation}
    for environment in environments:
        for task in environment.tasks().train:
            if (other := held_out.get(task.messages)) is not None:
                raise InputError(
                    f"environments.{environment.name}",
                    task.task_id,
                    f"asks the question that environments.{other.environment} holds out as {other.task_id}",
                    "Remove it from the training tasks, or hold out another question.",
                )


def _normalised(tasks: Mapping[str, Sequence[Task]], weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in tasks:
            raise InputError(
                f"environments.{name}.weight", weight, "no such environment", f"Known: {', '.join(tasks)}."
            )
        if not (math.isfinite(weight) and weight > 0):
            raise InputError(
                f"environments.{name}.weight",
                weight,
                "must be a positive number",
                "Remove the section to leave it out.",
            )
    given = {name: weights.get(name, 1.0) for name in tasks}
    total = sum(given.values())
    return {name: weight / total for name, weight in given.items()}

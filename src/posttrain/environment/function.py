"""A user's Python functions as reward, called as TRL calls them, in processes that can be killed.

A function takes ``completions`` and, as far as its parameters ask for them, these keyword lists, all of one
entry per completion: ``prompts``; ``gold``, ``task_id``, ``finish_reason``, ``num_tokens``; and every column
of the task's row. It returns one number per completion, or ``None`` where it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Literal

from posttrain.environment.grading import GradingCounts, failed, finite_number, graded, ungradable
from posttrain.environment.isolation import IsolatedFunction, Result, WrongResultError
from posttrain.environment.protocol import Attempt
from posttrain.environment.worker import CallRaisedError, CallTimeoutError, ProcessLostError
from posttrain.errors import InputError
from posttrain.trajectory import FinishReason, Grade, Message, Task

CompletionShape = Literal["text", "messages"]
RESERVED_COLUMNS = ("prompts", "completions", "gold", "task_id", "finish_reason", "num_tokens")


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One function by import path, ``package.module:function`` or ``path/file.py:function``, and its weight."""

    target: str
    weight: float = 1.0


class FunctionGrader:
    """Reward = weighted sum of the functions' values over those that apply.

    A value that is ``None`` means the part does not apply; if none applies the attempt is ungradable, as
    it is if a value is NaN, infinite or no number. An attempt on which a function raises, hangs or ends
    its process is failed, with the reason. With shape ``messages`` a completion is a list with one
    assistant message and a prompt a list of messages; with ``text`` a completion is its text and a prompt
    the text of its last message.

    Building one loads every function, compares its parameters with the columns of ``tasks`` and calls it
    once on the gold answers of the first tasks. Raises InputError on whatever would make it useless in a run.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[RewardFunction],
        tasks: Sequence[Task],
        shape: CompletionShape = "text",
        timeout_s: float = 30.0,
        workers: int = 1,
    ) -> None:
        self.counts = GradingCounts()
        self._setting = f"environments.{name}.reward"
        self._shape: CompletionShape = shape
        self._functions = _named(self._setting, functions)
        self._timeout_s = timeout_s
        self._columns = _columns(self._setting, tasks)
        self._accepted: dict[str, frozenset[str] | None] = {}
        self._runs = {
            part: IsolatedFunction(function.target, self._collate_for(part), timeout_s, self.counts, workers)
            for part, function in self._functions.items()
        }
        probes = [_probe(task) for task in (tasks[0], tasks[min(1, len(tasks) - 1)])]
        try:
            for part in self._functions:
                self._check_parameters(part)
                self._check_call(part, probes)
        except BaseException:
            self.close()
            raise

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        results = {part: run.run(attempts) for part, run in self._runs.items()}
        weights = self.part_weights
        grades = [combine({part: results[part][i] for part in results}, weights) for i in range(len(attempts))]
        self.counts.add(grades)
        return grades

    @property
    def part_weights(self) -> dict[str, float]:
        """Weight of each function in the reward, by the name of its part."""
        return {part: function.weight for part, function in self._functions.items()}

    def extract(self, completion: str) -> str | None:
        """Always ``None``: a reward function does not say what the answer is, so nothing can be voted on."""
        return None

    def close(self) -> None:
        """Kill the processes."""
        for run in self._runs.values():
            run.close()

    def _collate_for(self, part: str) -> Any:
        def collate(attempts: Sequence[Attempt]) -> dict[str, Any]:
            return _arguments(attempts, self._shape, self._columns, self._accepted[part])

        return collate

    def _check_parameters(self, part: str) -> None:
        target = self._functions[part].target
        try:
            parameters = self._runs[part].process.describe()
        except CallRaisedError as error:
            raise InputError(
                self._setting,
                target,
                f"cannot be loaded: {error}",
                "Give package.module:function or path/file.py:function.",
            ) from error
        except (CallTimeoutError, ProcessLostError) as error:
            raise InputError(self._setting, target, f"cannot be loaded: {error}", "Import the file by hand.") from error
        available = (*RESERVED_COLUMNS, *self._columns)
        names = [p["name"] for p in parameters if p["kind"] in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")]
        takes_any = any(p["kind"] == "VAR_KEYWORD" for p in parameters)
        for parameter in parameters:
            if parameter["kind"] == "POSITIONAL_ONLY" or (
                parameter["required"] and parameter["name"] in names and parameter["name"] not in available
            ):
                near = get_close_matches(parameter["name"], available, n=1)
                hint = f" Did you mean {near[0]!r}?" if near and parameter["kind"] != "POSITIONAL_ONLY" else ""
                raise InputError(
                    self._setting,
                    target,
                    f"its parameter {parameter['name']!r} cannot be filled; arguments are passed by name",
                    f"There are: {', '.join(available)}.{hint}",
                )
        if not takes_any and "completions" not in names:
            raise InputError(
                self._setting, target, "has no parameter 'completions'", "Declare it as f(completions, **columns)."
            )
        self._accepted[part] = None if takes_any else frozenset(names)

    def _check_call(self, part: str, probes: Sequence[Attempt]) -> None:
        target = self._functions[part].target
        try:
            values = self._runs[part].call(probes)
        except CallRaisedError as error:
            raise InputError(
                self._setting, target, f"raised on a trial call: {error}", self._other_shape(part, probes)
            ) from error
        except WrongResultError as error:
            raise InputError(
                self._setting, target, f"{error} on a trial call", "Return a list with one number per completion."
            ) from error
        except CallTimeoutError as error:
            raise InputError(
                self._setting,
                target,
                f"did not answer a trial call within {self._timeout_s:g} s",
                "Make it faster or raise timeout_s.",
            ) from error
        except ProcessLostError as error:
            raise InputError(
                self._setting, target, f"did not survive a trial call: {error}", "Call it by hand."
            ) from error
        wrong = [v for v in values if v is not None and not isinstance(v, int | float)]
        if wrong:
            raise InputError(
                self._setting, target, f"returned {wrong[0]!r} on a trial call", "Return numbers or None in a list."
            )

    def _other_shape(self, part: str, probes: Sequence[Attempt]) -> str:
        """What to advise: does the function work with completions in the other shape?"""
        shape = self._shape
        self._shape = "messages" if shape == "text" else "text"
        try:
            self._runs[part].call(probes)
            return f"It works with completions = {self._shape!r}: set that."
        except (CallRaisedError, CallTimeoutError, ProcessLostError, WrongResultError):
            return "Call it by hand with the gold answer as completion."
        finally:
            self._shape = shape


def combine(results: Mapping[str, Result], weights: Mapping[str, float]) -> Grade:
    """The grade of one attempt from the value each function gave it."""
    parts: dict[str, float | None] = {}
    broken: list[str] = []
    unusable: list[str] = []
    for part, result in results.items():
        parts[part] = None
        if result.error is not None:
            broken.append(f"{part}: {result.error}")
        elif result.value is not None:
            parts[part] = finite_number(result.value)
            if parts[part] is None:
                unusable.append(f"{part} returned {str(result.value)[:80]}")
    if broken:
        return failed("; ".join(broken), parts)
    if unusable:
        return ungradable("; ".join(unusable), parts)
    applicable = {part: value for part, value in parts.items() if value is not None}
    if not applicable:
        return ungradable("no part applies: every function returned None", parts)
    return graded(sum(weights[part] * value for part, value in applicable.items()), parts)


def _named(setting: str, functions: Sequence[RewardFunction]) -> dict[str, RewardFunction]:
    """Functions by part name: the function's own, with its module where two are called alike, and a number where
    their modules are too."""
    if not functions:
        raise InputError(setting, "[]", "names no function", "Give package.module:function or path/file.py:function.")
    for function in functions:
        module, colon, name = function.target.rpartition(":")
        if not (colon and module and name.isidentifier()):
            raise InputError(
                setting, function.target, "is no import path", "Give package.module:function or path/file.py:function."
            )
        if not math.isfinite(function.weight):
            raise InputError(f"{setting}_weights", function.weight, "is not finite", "Give a number.")
    short = [function.target.rpartition(":")[2] for function in functions]
    longer = [f"{_module(function.target)}.{name}" for function, name in zip(functions, short, strict=True)]
    targets = [function.target for function in functions]
    if len(set(targets)) < len(targets):
        raise InputError(setting, targets, "names a function twice", "Name each once.")
    named: dict[str, RewardFunction] = {}
    for place, (function, name, long_name) in enumerate(zip(functions, short, longer, strict=True)):
        numbered = f"{long_name}-{longer[: place + 1].count(long_name)}"
        named[name if short.count(name) == 1 else long_name if longer.count(long_name) == 1 else numbered] = function
    return named


def _module(target: str) -> str:
    module = target.rpartition(":")[0]
    return PurePath(module).stem if module.endswith(".py") else module


def _columns(setting: str, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Names of the tasks' own columns, in order of first appearance."""
    names: dict[str, None] = {}
    for task in tasks:
        names.update(dict.fromkeys(task.metadata))
    for name in ("prompts", "completions"):
        if name in names:
            raise InputError(
                setting, name, "a column of the tasks has the name of a fixed argument", "Rename the column."
            )
    return tuple(name for name in names if name not in RESERVED_COLUMNS)


def _probe(task: Task) -> Attempt:
    text = "0" if task.gold is None else str(task.gold)
    return Attempt(task, text, (*task.messages, Message("assistant", text)), FinishReason.STOP, 1)


def _arguments(
    attempts: Sequence[Attempt], shape: CompletionShape, columns: Sequence[str], accepted: frozenset[str] | None
) -> dict[str, Any]:
    """Keyword lists of one call; ``accepted`` ``None`` means the function takes any."""
    as_text = shape == "text"
    arguments: dict[str, list[Any]] = {
        "prompts": [a.task.messages[-1].content if as_text else _dicts(a.task.messages) for a in attempts],
        "completions": [
            a.completion if as_text else [{"role": "assistant", "content": a.completion}] for a in attempts
        ],
        "gold": [a.task.gold for a in attempts],
        "task_id": [a.task.task_id for a in attempts],
        "finish_reason": [a.finish_reason.value for a in attempts],
        "num_tokens": [a.num_tokens for a in attempts],
    }
    for column in columns:
        arguments[column] = [a.task.metadata.get(column) for a in attempts]
    return {name: values for name, values in arguments.items() if accepted is None or name in accepted}


def _dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in messages]

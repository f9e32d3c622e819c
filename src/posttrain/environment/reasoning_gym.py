"""Every reasoning-gym dataset by name, generated and scored in a process that can be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, cast

from posttrain.environment.answers import format_number, last_line, last_number, last_tag
from posttrain.environment.denial import unclear
from posttrain.environment.grading import (
    GradedTasks,
    GradingCounts,
    check_split,
    failed,
    finite_number,
    graded,
    ungradable,
)
from posttrain.environment.isolation import IsolatedFunction, Result
from posttrain.environment.protocol import Attempt, TaskSplit
from posttrain.environment.worker import CallProcess, CallRaisedError, CallTimeoutError, ProcessLostError
from posttrain.errors import InputError
from posttrain.trajectory import Grade, Message, Task

_TARGET = "posttrain.environment.gym_worker:serve"
_GENERATE_LIMIT_S = 600.0
# A generator draws entry i from seed + i, so seeds this far apart share no entry of any realistic size.
_EVALUATION_SEED_OFFSET = 1_000_000_007


def _number_text(text: str) -> str | None:
    value = None if unclear(text) else last_number(text)
    return None if value is None else format_number(value)


EXTRACTIONS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "whole": lambda text: text.strip() or None,
        "last_line": last_line,
        "last_number": _number_text,
        "answer_tag": lambda text: last_tag(text, "answer"),
    }
)


def reasoning_gym_environment(
    name: str,
    dataset: str,
    *,
    size: int,
    evaluation_size: int,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    extract: str = "last_line",
    timeout_s: float = 10.0,
) -> GradedTasks:
    """``size`` training and ``evaluation_size`` held-out tasks of a dataset.

    They come from seeds far apart; a question is kept once, and one that is held out is not trained.
    Scoring takes milliseconds unless it hangs (``9**9**9**9`` as an expression does): ``timeout_s`` is short.
    Raises InputError on an unknown dataset or parameter, or if nothing is left to train on.
    """
    if extract not in EXTRACTIONS:
        raise InputError(f"environments.{name}.extract", extract, "is unknown", f"Use {', '.join(EXTRACTIONS)}.")
    if find_spec("reasoning_gym") is None:
        raise InputError(f"environments.{name}.kind", "reasoning_gym", "needs a package", "Install posttrain[env].")
    options = dict(parameters or {})
    for key in ("seed", "size"):
        if key in options:
            raise InputError(
                f"environments.{name}.parameters", key, "has a setting of its own", f"Set environments.{name}.{key}."
            )
    grader = GymGrader(extract, timeout_s)
    try:
        split = _split(name, dataset, options, seed, size, evaluation_size, grader.process)
    except BaseException:
        grader.close()
        raise
    return GradedTasks(name, split, grader)


class GymGrader:
    """Scores what the extraction finds in a completion.

    A completion without an answer is wrong (reward 0, not parsable). A scorer that raises or returns no
    finite number leaves the attempt ungradable; one that hangs or ends its process leaves it failed.
    """

    def __init__(self, extract: str, timeout_s: float) -> None:
        self.counts = GradingCounts()
        self._find = EXTRACTIONS[extract]
        self._run: IsolatedFunction[tuple[Attempt, str]] = IsolatedFunction(_TARGET, _collate, timeout_s, self.counts)

    @property
    def process(self) -> CallProcess:
        """The process that scores; it generates as well, so the package is loaded once."""
        return self._run.process

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        """One grade per attempt, in order."""
        answers = [self._find(attempt.completion) for attempt in attempts]
        asked = [(a, answer) for a, answer in zip(attempts, answers, strict=True) if answer is not None]
        results = iter(self._run.run(asked))
        grades = [
            graded(0.0, {"score": 0.0, "parsable": 0.0}, "no answer found")
            if answer is None
            else _grade(next(results), answer)
            for answer in answers
        ]
        self.counts.add(grades)
        return grades

    def extract(self, completion: str) -> str | None:
        """What is scored."""
        return self._find(completion)

    def close(self) -> None:
        """Kill the process."""
        self._run.close()


def _grade(result: Result, answer: str) -> Grade:
    if result.error is not None:
        return (ungradable if result.raised else failed)(result.error)
    score = result.value
    if isinstance(score, dict):
        return ungradable(f"the scorer raised {cast(dict[str, str], score)['raised']}")
    number = finite_number(score)
    if number is None:
        return ungradable(f"the scorer returned {str(score)[:80]}")
    return graded(number, {"score": number, "parsable": 1.0}, f"read {answer[:80]!r}")


def _collate(items: Sequence[tuple[Attempt, str]]) -> dict[str, Any]:
    return {
        "requests": [
            {
                "do": "score",
                "spec": attempt.task.metadata["spec"],
                "index": attempt.task.metadata["index"],
                "question": attempt.task.messages[-1].content,
                "answer": answer,
                "stored": attempt.task.metadata["entry"],
            }
            for attempt, answer in items
        ]
    }


def _split(
    name: str, dataset: str, options: dict[str, Any], seed: int, size: int, evaluation_size: int, process: CallProcess
) -> TaskSplit:
    def spec(seed: int, size: int) -> str:
        return json.dumps({"dataset": dataset, "parameters": {**options, "seed": seed, "size": size}}, sort_keys=True)

    _check_name(name, dataset, process)
    evaluation: tuple[Task, ...] = ()
    if evaluation_size:
        held_out_spec = spec(seed + _EVALUATION_SEED_OFFSET, evaluation_size)
        evaluation = _generate(name, dataset, held_out_spec, evaluation_size, "evaluation", process, set())
    held_out = {task.messages[0].content for task in evaluation}
    train = _generate(name, dataset, spec(seed, size), size, "train", process, held_out)
    return check_split(name, TaskSplit(train, evaluation))


def _check_name(name: str, dataset: str, process: CallProcess) -> None:
    try:
        (known,) = process.call({"requests": [{"do": "names"}]}, _GENERATE_LIMIT_S)
    except (CallRaisedError, CallTimeoutError, ProcessLostError) as error:
        raise InputError(
            f"environments.{name}.kind", "reasoning_gym", f"cannot be loaded: {error}", "Install posttrain[env]."
        ) from error
    if dataset not in known:
        near = get_close_matches(dataset, known, n=3, cutoff=0.4)
        raise InputError(
            f"environments.{name}.dataset",
            dataset,
            "is not a dataset of reasoning-gym",
            f"Nearest: {', '.join(near)}." if near else f"There are {len(known)}, such as {', '.join(known[:3])}.",
        )


def _generate(
    name: str, dataset: str, spec: str, size: int, part: str, process: CallProcess, exclude: set[str]
) -> tuple[Task, ...]:
    request = {"do": "generate", "spec": spec, "size": size}
    try:
        (entries,) = process.call({"requests": [request]}, _GENERATE_LIMIT_S)
    except CallRaisedError as error:
        raise InputError(
            f"environments.{name}.parameters",
            spec,
            f"{dataset} refuses them: {error}",
            "See the dataset's own parameters.",
        ) from error
    except (CallTimeoutError, ProcessLostError) as error:
        raise InputError(
            f"environments.{name}.dataset", dataset, f"cannot be generated: {error}", "Ask for fewer or smaller tasks."
        ) from error
    seen = set(exclude)
    tasks: list[Task] = []
    for index, entry in enumerate(entries):
        question = entry["question"]
        if question in seen:
            continue
        seen.add(question)
        tasks.append(
            Task(
                task_id=f"{name}:{part}-{index}",
                messages=(Message("user", question),),
                gold=entry["answer"],
                environment=name,
                metadata={"dataset": dataset, "spec": spec, "index": index, "entry": entry["entry"]},
            )
        )
    return tuple(tasks)

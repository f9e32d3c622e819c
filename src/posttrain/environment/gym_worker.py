"""reasoning-gym inside a process of its own: generates tasks and scores answers.

Its scorers parse model text as expressions, may hang on it, and its generators depend on set order; the
process can be killed and has fixed string hashes, so a task is a pure function of its parameters.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS


def serve(requests: list[dict[str, Any]]) -> list[Any]:
    """Answer each request: ``names``, ``generate`` (a list of entries) or ``score`` (a number, or what was raised)."""
    actions = {"names": _names, "generate": _generate, "score": _score}
    return [actions[request.pop("do")](**request) for request in requests]


def _names() -> list[str]:
    return sorted(DATASETS)


def _generate(spec: str, size: int) -> list[dict[str, Any]]:
    dataset = _create(spec)
    entries = [dataset[index] for index in range(size)]
    # A few generators draw on and give another entry when asked again: theirs must be kept whole.
    replayable = all(dataset[index]["question"] == entries[index]["question"] for index in range(min(3, size)))
    return [
        {
            "question": str(entry["question"]),
            "answer": _json_or_text(entry["answer"]),
            "entry": None if replayable else _storable(entry),
        }
        for entry in entries
    ]


def _storable(entry: Any) -> Any:
    stored = json.loads(json.dumps(entry))
    if stored != entry:
        raise ValueError("its entries can neither be generated again nor stored as JSON")
    return stored


def _score(spec: str, index: int, question: str, answer: str, stored: Any) -> Any:
    entry = _entry(spec, index) if stored is None else stored
    if str(entry["question"]) != question:
        raise RuntimeError(f"question {index} is generated differently here; the task cannot be graded")
    try:
        return _dataset(spec).score_answer(answer=answer, entry=entry)
    except Exception as error:  # of one answer; it must not cost the others of the batch their score
        return {"raised": f"{type(error).__name__}: {error}"[:300]}


def _create(spec: str) -> Any:
    options = json.loads(spec)
    parameters = options["parameters"]
    if options["dataset"] == "composite" and "datasets" in parameters:
        parameters["datasets"] = [
            DatasetSpec(part["name"], part.get("weight", 1.0), part.get("config", {}))
            for part in parameters["datasets"]
        ]
    return reasoning_gym.create_dataset(options["dataset"], **parameters)


@lru_cache(maxsize=16)
def _dataset(spec: str) -> Any:
    return _create(spec)


@lru_cache(maxsize=4096)
def _entry(spec: str, index: int) -> Any:
    return _dataset(spec)[index]


def _json_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)

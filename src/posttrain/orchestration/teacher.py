"""The teacher of a run: its model, its prompts, and whether its tokens are the student's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from posttrain.errors import InputError
from posttrain.model.attention import ATTENTION_NAME
from posttrain.model.forward import check_packed_forward, prepare_model
from posttrain.model.head import HeadSettings
from posttrain.model.load import LoadedModel, ModelFacts, inspect_model, load_policy
from posttrain.policy.teacher import Teacher
from posttrain.rollout.turns import Turns
from posttrain.settings import Settings
from posttrain.settings.resolve import MachinePlan
from posttrain.settings.teacher import SELF
from posttrain.trajectory import IntArray, Message, Task, Trajectory

_Loaded = TypeVar("_Loaded")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class TaughtBy:
    """``model`` scores; ``turns`` makes its prompts; ``template`` is its privileged prompt, if it has one.
    ``facts`` are absent where the policy is its own teacher."""

    model: Teacher
    turns: Turns
    template: str | None
    facts: ModelFacts | None

    def task(self, task: Task) -> Task:
        """The task as the teacher reads it."""
        return task if self.template is None else privileged(task, self.template)


def inspect_teacher(settings: Settings, student: ModelFacts) -> ModelFacts | None:
    """Facts of the teacher before weights are loaded; ``None`` without one, or if the policy is its own.

    Raises InputError if its head cannot give what `policy.distillation` compares.
    """
    teacher = settings.teacher
    if teacher is None or teacher.path == SELF:
        return None
    facts = _named("teacher.path", lambda: inspect_model(teacher.path))
    if facts.vocabulary < student.vocabulary:
        raise InputError(
            "teacher.path",
            teacher.path,
            f"it knows {facts.vocabulary} tokens and the student can sample {student.vocabulary}",
            "Use a teacher of the student's family.",
        )
    return facts


def build_teacher(
    settings: Settings, machine: MachinePlan, student: LoadedModel, turns: Turns, head: HeadSettings
) -> TaughtBy | None:
    """Load the teacher, frozen, beside the student. Raises InputError if it cannot be loaded or reads other tokens."""
    section = settings.teacher
    if section is None:
        return None
    temperature = section.temperature or settings.rollout.temperature
    if section.path == SELF:
        return TaughtBy(Teacher(student.model, temperature, head), turns, section.prompt, None)
    loaded = load_frozen("teacher.path", section.path, machine, student, settings.run.seed)
    own = Turns(
        turns.tokenizer,
        turns.system_prompt,
        context_length=loaded.facts.context_length,
        max_new_tokens=turns.max_new_tokens,
        stop_token_ids=turns.stop_token_ids,
    )
    return TaughtBy(Teacher(loaded.model, temperature, head), own, section.prompt, loaded.facts)


def load_frozen(setting: str, path: str, machine: MachinePlan, policy: LoadedModel, seed: int) -> LoadedModel:
    """A model that only scores what the policy writes. Raises InputError, naming ``setting``, if it cannot be loaded or
    reads other tokens."""
    loaded = _named(
        setting,
        lambda: load_policy(
            path, getattr(torch, machine.compute_dtype), device=machine.device, attention=ATTENTION_NAME, seed=seed
        ),
    )
    check_same_tokens(policy, loaded, setting)
    prepare_model(loaded.model)
    model: Any = loaded.model
    check_packed_forward(model)
    model.requires_grad_(False)
    return loaded


def _named(setting: str, load: Callable[[], _Loaded]) -> _Loaded:
    """Errors of loading name this model's setting, not that of the model that is trained."""
    try:
        return load()
    except InputError as error:
        if not error.setting.startswith("model."):
            raise
        raise InputError(setting, error.value, error.problem, error.fix) from error


def check_same_tokens(student: LoadedModel, teacher: LoadedModel, setting: str = "teacher.path") -> None:
    """Raise InputError naming the first difference, unless every id means the same token to both."""
    mine, theirs = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    problem = ""
    if mine != theirs:
        by_id = [{i: token for token, i in vocabulary.items()} for vocabulary in (mine, theirs)]
        first = next(i for i in sorted(by_id[0].keys() | by_id[1].keys()) if by_id[0].get(i) != by_id[1].get(i))
        problem = f"id {first} is {by_id[0].get(first)!r} to the policy and {by_id[1].get(first)!r} to it"
    else:
        for name in ("eos_token_id", "bos_token_id"):
            ours, its = getattr(student.tokenizer, name), getattr(teacher.tokenizer, name)
            if ours != its:
                problem = f"{name} is {ours} to the policy and {its} to it"
                break
    if problem:
        raise InputError(
            setting,
            str(teacher.directory),
            f"its tokenizer is not the policy's: {problem}",
            "Use a model of the same tokenizer; the policy's tokens mean nothing to another.",
        )


def teacher_prompts(teacher: TaughtBy, rows: Sequence[Trajectory]) -> dict[str, IntArray] | None:
    """The teacher's prompt of each group, int32 (P,); ``None`` where it reads what the student reads.

    Raises InputError as ``privileged`` and ``Turns.prompt_ids`` do.
    """
    if teacher.template is None:
        return None
    tasks = {row.group_id: row.task for row in rows}
    return {group: teacher.turns.prompt_ids(teacher.task(task)) for group, task in tasks.items()}


def privileged(task: Task, template: str) -> Task:
    """The task with its last user message replaced by the template: ``{prompt}`` that message, ``{gold}`` the right
    answer, other names columns of the task. Raises InputError for a name the task does not have."""
    last = max((i for i, m in enumerate(task.messages) if m.role == "user"), default=None)
    known: dict[str, Any] = dict(task.metadata)
    if task.gold is not None:
        known["gold"] = task.gold
    if last is not None:
        known["prompt"] = task.messages[last].content

    def fill(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise InputError(
                "teacher.prompt",
                match[0],
                f"task {task.task_id!r} of environment {task.environment!r} has no such value",
                f"It has {', '.join('{' + name + '}' for name in sorted(known))}.",
            )
        return str(known[match[1]])

    message = Message("user", _PLACE.sub(fill, template))
    messages = (
        (*task.messages, message) if last is None else (*task.messages[:last], message, *task.messages[last + 1 :])
    )
    return replace(task, messages=messages)

"""Rows of a file as records of one kind: pairs, labelled answers, conversations. No tokenizer here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from posttrain.environment.sources import Row
from posttrain.errors import InputError
from posttrain.settings.data import DataSettings
from posttrain.settings.rows.fixed import RowKind
from posttrain.trajectory import Message

ROLES = ("system", "user", "assistant", "tool")
_LABELS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}


class UnusableRowError(ValueError):
    """A row that is well formed and cannot be trained on; the message says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row. ``messages`` come before the answers; for a conversation they are all of it and ``answers`` is empty.

    ``answers`` are (chosen, rejected) for pairs and one for labelled answers. ``margin`` is 0 where nobody said.
    """

    place: str
    messages: tuple[Message, ...]
    answers: tuple[str, ...] = ()
    desirable: bool = True
    margin: float = 0.0

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What decides on which side of the split the row is: everything before the first answer."""
        first = next((i for i, m in enumerate(self.messages) if m.role == "assistant"), len(self.messages))
        return self.messages if self.answers else self.messages[:first] or self.messages


def record_of(setting: str, row: Row, kind: RowKind, data: DataSettings) -> Record:
    """Read one row.

    Raises InputError for a column that is not there or holds something else than it should, and UnusableRowError for
    equal answers, an empty answer, different prompts on both sides, or a margin that is no number.
    """
    reader = _Reader(setting, row, data)
    match kind:
        case "pairs":
            return reader.pair()
        case "answers":
            return reader.answer()
        case "conversations":
            return reader.conversation()


@dataclass(frozen=True, slots=True)
class _Reader:
    setting: str
    row: Row
    data: DataSettings

    def pair(self) -> Record:
        sides = [self._side(column) for column in (self.data.chosen_column, self.data.rejected_column)]
        prompts = [prompt for prompt, _ in sides if prompt is not None]
        if (given := self._prompt(required=len(prompts) < len(sides))) is not None:
            prompts.append(given)
        if any(prompt != prompts[0] for prompt in prompts):
            raise UnusableRowError("its chosen and rejected answers do not answer the same prompt")
        chosen, rejected = (answer for _, answer in sides)
        if chosen == rejected:
            raise UnusableRowError("its chosen and rejected answers are equal")
        return Record(self.row.place, prompts[0], (chosen, rejected), margin=self._margin())

    def answer(self) -> Record:
        label = self._value(self.data.label_column)
        known = label if isinstance(label, bool) else _LABELS.get(str(label).strip().lower())
        if known is None:
            self._fail(f"its label in column {self.data.label_column!r} is {label!r}", "Use true or false.")
        prompt, answer = self._prompt_and_answer()
        return Record(self.row.place, prompt, (answer,), desirable=bool(known))

    def conversation(self) -> Record:
        values = self.row.values
        if self.data.render == "text":
            if self.data.text_column in values:
                text = self._text(self.data.text_column)
                return Record(self.row.place, (Message("assistant", text),))
        elif self.data.messages_column in values:
            messages = self._messages(self.data.messages_column, values[self.data.messages_column])
            if not any(m.role == "assistant" for m in messages):
                raise UnusableRowError("no message of its conversation is the assistant's")
            if any(m.role == "assistant" and not m.content.strip() for m in messages):
                raise UnusableRowError("an answer is empty")
            return Record(self.row.place, messages)
        prompt, answer = self._prompt_and_answer()
        return Record(self.row.place, (*prompt, Message("assistant", answer)))

    def _prompt_and_answer(self) -> tuple[tuple[Message, ...], str]:
        prompt, answer = self._side(self.data.completion_column)
        given = self._prompt(required=prompt is None)
        if prompt is not None and given is not None and prompt != given:
            raise UnusableRowError("its answer does not answer its prompt")
        found = given if prompt is None else prompt
        assert found is not None
        return found, answer

    def _side(self, column: str) -> tuple[tuple[Message, ...] | None, str]:
        """The answer in a column, and the messages before it where the column holds a whole conversation."""
        value = self._value(column)
        if isinstance(value, str):
            return None, self._not_empty(value)
        messages = self._messages(column, value)
        if messages[-1].role != "assistant":
            self._fail(f"the last message in column {column!r} is not the assistant's", "End with the answer.")
        return messages[:-1] or None, self._not_empty(messages[-1].content)

    def _not_empty(self, answer: str) -> str:
        if not answer.strip():
            raise UnusableRowError("an answer is empty")
        return answer

    def _prompt(self, required: bool) -> tuple[Message, ...] | None:
        column = self.data.prompt_column
        if self.row.values.get(column) is None:
            if required:
                self._missing(column)
            return None
        value = self.row.values[column]
        if isinstance(value, str):
            if not value.strip():
                raise UnusableRowError("its prompt is empty")
            return (Message("user", value),)
        messages = self._messages(column, value)
        if messages[-1].role == "assistant":
            self._fail("its prompt ends with an assistant message", "End it with the user's.")
        return messages

    def _margin(self) -> float:
        if self.data.margin_column is None:
            return 0.0
        if self.data.margin_column not in self.row.values:
            self._missing(self.data.margin_column)
        value = self.row.values[self.data.margin_column]
        try:
            margin = float(value)
        except (TypeError, ValueError):
            margin = math.nan  # the file's own NaN arrives as None
        if isinstance(value, bool) or not math.isfinite(margin):
            raise UnusableRowError(f"its margin is {'not a finite number' if value is None else repr(value)}")
        return margin

    def _text(self, column: str) -> str:
        value = self._value(column)
        if not isinstance(value, str):
            self._fail(f"column {column!r} holds {type(value).__name__}, not text", "Store text.")
        return self._not_empty(cast(str, value))

    def _value(self, column: str) -> Any:
        value = self.row.values.get(column)
        if value is None:
            self._missing(column)
        return value

    def _messages(self, column: str, value: Any) -> tuple[Message, ...]:
        fix = f"Column {column!r} takes text or a list of {{role, content}}."
        if not isinstance(value, list) or not value:
            self._fail(f"column {column!r} is neither text nor a list of messages", fix)
        messages: list[Message] = []
        for entry in cast(Sequence[Any], value):
            message = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
            role, content = message.get("role"), message.get("content")
            if role not in ROLES or not isinstance(content, str):
                self._fail(f"a message in column {column!r} is {str(entry)[:80]}", fix)
            messages.append(Message(str(role), str(content)))
        return tuple(messages)

    def _missing(self, column: str) -> None:
        self._fail(f"has no value in column {column!r}", f"It has: {', '.join(self.row.values)}.")

    def _fail(self, problem: str, fix: str) -> None:
        raise InputError(self.setting, self.row.place, problem, fix)

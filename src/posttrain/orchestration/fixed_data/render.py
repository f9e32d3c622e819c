"""From records to token ids, with a mask of exactly the tokens that are trained.

A row is never cut. An answer ends with its end-of-sequence token, which is trained; what a template writes after that
token (often a newline) is never sampled, so it is left away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posttrain.errors import InputError
from posttrain.orchestration.fixed_data.records import Record, UnusableRowError
from posttrain.trajectory import BoolArray, IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Rendered:
    """``token_ids`` int32 (T,); ``target_mask`` bool (T,), never true within the first ``prefix`` tokens (at least 1).

    The prefix is what comes before the first trained token; answers to one prompt have it in common.
    """

    token_ids: IntArray
    target_mask: BoolArray
    prefix: int

    @property
    def targets(self) -> int:
        """Trained tokens."""
        return int(self.target_mask.sum())

    def __len__(self) -> int:
        return len(self.token_ids)


class Renderer:
    """Renders the records of one run with its model's tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int],
        render: Literal["chat", "text"] = "chat",
        system_prompt: str | None = None,
        train_on: Literal["assistant", "all"] = "assistant",
    ) -> None:
        """``eos_token_ids`` end an answer. Raises InputError if a chat template is wanted and absent."""
        template: Any = getattr(tokenizer, "chat_template", None)
        if render == "chat" and not template:
            raise InputError(
                "data.render",
                "chat",
                "the model's tokenizer has no chat template",
                'Use an instruct model, or render = "text".',
            )
        own: Any = tokenizer.eos_token_id
        self._tokenizer: Any = tokenizer
        self._ends = frozenset((*eos_token_ids, int(own)))
        self._end = int(own)
        self._render, self._system_prompt, self._train_on = render, system_prompt, train_on
        self._marks_spans = render == "chat" and "{% generation" in str(template).replace("{%-", "{%")

    def answers(self, record: Record) -> tuple[Rendered, ...]:
        """Each answer of a record after its prompt; for a conversation the whole of it.

        Raises UnusableRowError where nothing is left to train on, and InputError where the template cannot tell
        prompt from answer.
        """
        if not record.answers:
            return (self._conversation(record),)
        return tuple(self._answer(record, answer) for answer in record.answers)

    def after_prompt_of(self, record: Record, other: Record) -> Rendered:
        """The answer of ``other`` after the prompt of ``record``."""
        return self._answer(record, other.answers[0])

    def _answer(self, record: Record, answer: str) -> Rendered:
        if self._render == "text":
            prompt = self._plain("\n".join(m.content for m in record.messages), special=True)
            while prompt and prompt[-1] in self._ends:
                prompt.pop()
            rest = self._plain(answer, special=False)
        else:
            messages = self._opened(record.messages)
            prompt = self._template(record, messages, generation=True)
            whole = self._template(record, [*messages, Message("assistant", answer)])
            self._same_start(record, prompt, whole)
            rest = whole[len(prompt) :]
        if not prompt:
            raise UnusableRowError("its prompt has no tokens")
        ids = [*prompt, *self._ended(rest)]
        mask = np.zeros(len(ids), np.bool_)
        mask[len(prompt) :] = True
        return Rendered(np.array(ids, np.int32), mask, len(prompt))

    def _conversation(self, record: Record) -> Rendered:
        if self._render == "text":
            return self._text_conversation(record)
        messages = self._opened(record.messages)
        ids = self._template(record, messages)
        mask = np.zeros(len(ids), np.bool_)
        if self._train_on == "all":
            mask[1:] = True
            last = len(self._template(record, messages[:-1])) if len(messages) > 1 else 0
        elif self._marks_spans:
            mask = self._marked(record, messages, len(ids))
            starts = np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]]))
            last = int(starts[-1]) if len(starts) else 0
        else:
            last = 0
            for index, message in enumerate(messages):
                if message.role == "assistant":
                    last, end = self._span(record, messages, index, ids)
                    mask[last:end] = True
        return self._closed(ids, mask, last if messages[-1].role == "assistant" else None)

    def _text_conversation(self, record: Record) -> Rendered:
        *before, answer = record.messages
        if before and self._train_on == "assistant":
            return self._answer(Record(record.place, tuple(before)), answer.content)
        ids = self._plain("\n".join(m.content for m in record.messages), special=True)
        return self._closed(ids, np.ones(len(ids), np.bool_), 0)

    def _closed(self, ids: list[int], mask: BoolArray, last_answer: int | None) -> Rendered:
        """Cut after the last trained token; an answer at the end, from ``last_answer`` on, ends with a trained end."""
        if last_answer is not None:
            ended = [*ids[:last_answer], *self._ended(ids[last_answer:])]
            mask = np.concatenate([mask, [False]])[: len(ended)]
            mask[-1] = True
            ids = ended
        mask[:1] = False
        if not mask.any():
            raise UnusableRowError("it has no token to train on")
        trained = np.flatnonzero(mask)
        last = int(trained[-1]) + 1
        return Rendered(np.array(ids[:last], np.int32), mask[:last].copy(), int(trained[0]))

    def _ended(self, ids: list[int]) -> list[int]:
        """Up to the last end of sequence, or with one put at the end where there is none."""
        last = max((i for i, token in enumerate(ids) if token in self._ends), default=None)
        return [*ids, self._end] if last is None else ids[: last + 1]

    def _span(self, record: Record, messages: list[Message], index: int, ids: list[int]) -> tuple[int, int]:
        """Where an answer lies in the whole: after its generation prompt, up to its end of sequence."""
        before = self._template(record, messages[:index], generation=True) if index else []
        through = self._template(record, messages[: index + 1])
        self._same_start(record, before, ids)
        self._same_start(record, through, ids)
        end = len(through)
        ends = [i for i in range(len(before), end) if ids[i] in self._ends]
        return len(before), ends[-1] + 1 if ends else end

    def _marked(self, record: Record, messages: list[Message], count: int) -> BoolArray:
        """The template's own marks of what the assistant says, each with the end of sequence after it."""
        marks = self._tokenizer.apply_chat_template(
            _dicts(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        mask = np.array(marks["assistant_masks"], np.bool_)
        ids: list[int] = list(marks["input_ids"])
        if len(mask) != count:
            self._untrue(record, "its marks do not fit its tokens")
        for end in np.flatnonzero(mask[:-1] & ~mask[1:]) + 1:
            mask[end] |= ids[int(end)] in self._ends
        return mask

    def _opened(self, messages: Sequence[Message]) -> list[Message]:
        if self._system_prompt is None or any(m.role == "system" for m in messages):
            return list(messages)
        return [Message("system", self._system_prompt), *messages]

    def _template(self, record: Record, messages: Sequence[Message], generation: bool = False) -> list[int]:
        try:
            return list(
                self._tokenizer.apply_chat_template(
                    _dicts(messages),
                    tokenize=True,
                    add_generation_prompt=generation,
                    return_dict=False,
                    tokenizer_kwargs={"verbose": False},
                )
            )
        except Exception as error:
            raise InputError(
                "data.path",
                record.place,
                f"the chat template refuses its messages ({error})",
                "Use the roles that the model's template knows (system, user, assistant).",
            ) from error

    def _plain(self, text: str, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special, verbose=False))

    def _same_start(self, record: Record, start: list[int], whole: list[int]) -> None:
        if whole[: len(start)] != start:
            self._untrue(record, "it renders what comes before an answer otherwise once the answer is there")

    def _untrue(self, record: Record, problem: str) -> None:
        raise InputError(
            "data.render",
            record.place,
            f"the chat template cannot tell which tokens are the assistant's: {problem}",
            "Mark them in the template with {% generation %}, or give each answer a row of its own.",
        )


def _dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in messages]

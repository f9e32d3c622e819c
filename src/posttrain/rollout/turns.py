"""Between messages and token ids: the only owner of tokenizer and chat template.

Messages become ids once, when a prompt is made. Sampled ids become text for graders and people and never come
back: no function here takes sampled text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posttrain.errors import InputError
from posttrain.model.load import LoadedModel
from posttrain.trajectory import IntArray, Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Turns:
    """Prompts for tasks, texts for tokens."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        system_prompt: str | None = None,
        *,
        context_length: int,
        max_new_tokens: int = 1,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """``system_prompt`` opens conversations that have no system message of their own.

        ``context_length`` and ``max_new_tokens`` bound the prompts; ``stop_token_ids`` end an answer (default: the
        tokenizer's end of sequence). Raises InputError if the tokenizer has no chat template.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "model.path",
                tokenizer.name_or_path or type(tokenizer).__name__,
                "the model has no chat template, but tasks are conversations",
                "Use an instruct model, or put a chat_template.jinja into the model folder.",
            )
        eos: Any = tokenizer.eos_token_id
        self.tokenizer: Any = tokenizer
        self.system_prompt = system_prompt
        self.context_length = context_length
        self.max_new_tokens = max_new_tokens
        self.stop_token_ids: tuple[int, ...] = tuple(stop_token_ids) or (int(eos),)
        self._token_texts: dict[int, str] = {}

    @classmethod
    def of(cls, loaded: LoadedModel, system_prompt: str | None = None, *, max_new_tokens: int = 1) -> Turns:
        """Turns of a loaded model: its tokenizer, its context length, every end-of-sequence id it declares."""
        return cls(
            loaded.tokenizer,
            system_prompt,
            context_length=loaded.facts.context_length,
            max_new_tokens=max_new_tokens,
            stop_token_ids=loaded.facts.eos_token_ids,
        )

    def conversation(self, task: Task) -> tuple[Message, ...]:
        """The messages the policy sees: the task's, opened by the system prompt unless the task brings its own."""
        has_system = any(m.role == "system" for m in task.messages)
        if self.system_prompt is None or has_system:
            return task.messages
        return (Message("system", self.system_prompt), *task.messages)

    def prompt_ids(self, task: Task) -> IntArray:
        """Ids of the conversation up to where the policy starts to write, int32 (P,).

        Raises InputError if the template refuses the messages, or prompt and ``max_new_tokens`` exceed the context.
        """
        messages = [{"role": m.role, "content": m.content} for m in self.conversation(task)]
        try:
            # Not verbose: a prompt beyond the context is an error of ours below, not a warning of the tokenizer's.
            ids = self.tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                tokenizer_kwargs={"verbose": False},
            )
        except Exception as error:
            raise InputError(
                f"environments.{task.environment}",
                task.task_id,
                f"the chat template refuses its messages ({error})",
                "Use the roles that the model's template knows (system, user, assistant).",
            ) from error
        if not ids:
            raise InputError(
                f"environments.{task.environment}", task.task_id, "its prompt has no tokens", "Give it a message."
            )
        if len(ids) + self.max_new_tokens > self.context_length:
            raise InputError(
                f"environments.{task.environment}",
                task.task_id,
                f"its prompt of {len(ids)} tokens and {self.max_new_tokens} new tokens exceed the model's context of "
                f"{self.context_length}",
                "Shorten the prompt, lower rollout.max_new_tokens, or remove the task.",
            )
        return np.asarray(ids, np.int32)

    def text(self, token_ids: IntArray | Sequence[int]) -> str:
        """Text of sampled ids without special tokens: what graders and people read."""
        return self.tokenizer.decode(
            [int(i) for i in token_ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def token_texts(self, token_ids: IntArray | Sequence[int]) -> list[str]:
        """Text of each id by itself, special tokens included. A token that is part of a character shows as U+FFFD."""
        return [self._token_text(int(i)) for i in token_ids]

    def _token_text(self, token_id: int) -> str:
        if token_id not in self._token_texts:
            known = token_id < len(self.tokenizer)
            # A model may have more rows than its tokenizer has tokens, and can sample them.
            text = self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False) if known else f"<{token_id}>"
            self._token_texts[token_id] = text
        return self._token_texts[token_id]

"""A teacher's prompt and tokens: what is put where, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import InputError
from posttrain.model.load import LoadedModel, load_policy
from posttrain.orchestration.teacher import check_same_tokens, privileged
from posttrain.trajectory import Message, Task

TASK = Task(
    "t1",
    (Message("system", "s"), Message("user", "first"), Message("assistant", "a"), Message("user", "2 {gold} 3?")),
    {"answer": 5},
    "sums",
    {"hint": "add {prompt}"},
)


def test_only_the_last_user_message_is_replaced_and_what_is_put_in_is_not_read_again() -> None:
    told = privileged(TASK, "{prompt} Hint: {hint}; {gold}. \\frac{1}{2} {}")
    assert told.messages[:3] == TASK.messages[:3]
    assert told.messages[3].content == "2 {gold} 3? Hint: add {prompt}; {'answer': 5}. \\frac{1}{2} {}"
    assert replace(told, messages=TASK.messages) == TASK


def test_a_task_without_a_user_message_gets_one() -> None:
    told = privileged(replace(TASK, messages=TASK.messages[:1]), "do it")
    assert [m.role for m in told.messages] == ["system", "user"]


@pytest.mark.parametrize("name", ["hints", "gold"])
def test_a_value_the_task_does_not_have_is_named_with_those_it_has(name: str) -> None:
    with pytest.raises(InputError, match=r"teacher\.prompt.*task 't1'.*\{hint\}, \{prompt\}"):
        privileged(replace(TASK, gold=None), "{" + name + "}")


class Tokens:
    """A tokenizer as far as it is compared."""

    def __init__(self, vocabulary: dict[str, int], eos: int = 2, bos: int | None = None) -> None:
        self.vocabulary, self.eos_token_id, self.bos_token_id = vocabulary, eos, bos

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (Tokens({"a": 0, "c": 1, "</s>": 2}), "id 1 is 'b' to the policy and 'c' to it"),
        (Tokens({"a": 0, "b": 1}), "id 2 is '</s>' to the policy and None to it"),
        (Tokens({"a": 0, "b": 1, "</s>": 2, "x": 3}), "id 3 is None to the policy and 'x' to it"),
        (Tokens({"a": 0, "b": 1, "</s>": 2}, eos=1), "eos_token_id is 2 to the policy and 1 to it"),
        (Tokens({"a": 0, "b": 1, "</s>": 2}, bos=0), "bos_token_id is None to the policy and 0 to it"),
    ],
)
def test_another_tokenizer_is_refused_by_its_first_difference(other: Any, problem: str) -> None:
    loaded = load_policy("tiny:llama")
    student = replace(loaded, tokenizer=Tokens({"a": 0, "b": 1, "</s>": 2}))  # pyright: ignore[reportArgumentType]
    teacher: LoadedModel = replace(loaded, tokenizer=other)
    with pytest.raises(InputError, match=r"teacher\.path") as caught:
        check_same_tokens(student, teacher)
    assert problem in str(caught.value)
    check_same_tokens(student, student)

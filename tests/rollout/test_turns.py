"""Between messages and ids: prompts are what the template says, and sampled ids only ever become text."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from posttrain.errors import InputError
from posttrain.model.load import load_policy
from posttrain.model.tiny import tiny_tokenizer
from posttrain.rollout.turns import Turns
from posttrain.trajectory import Message, Task

LOADED = load_policy("tiny:llama")


def task(*messages: tuple[str, str]) -> Task:
    return Task("sum:1", tuple(Message(role, content) for role, content in messages), None, "sums")


def shown(turns: Turns, asked: Task) -> str:
    return "".join(turns.token_texts(turns.prompt_ids(asked)))


def test_a_prompt_is_the_template_up_to_where_the_policy_writes() -> None:
    turns = Turns.of(LOADED)
    ids = turns.prompt_ids(task(("user", "2+2?")))
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert shown(turns, task(("user", "2+2?"))) == "<user>2+2?<end><assistant>"


def test_the_system_prompt_opens_conversations_without_one() -> None:
    turns = Turns.of(LOADED, "Be brief.")
    assert shown(turns, task(("user", "Hi"))) == "<system>Be brief.<end><user>Hi<end><assistant>"
    own = task(("system", "Be long."), ("user", "Hi"))
    assert shown(turns, own) == "<system>Be long.<end><user>Hi<end><assistant>"


def test_a_prompt_that_leaves_no_room_is_refused_at_the_exact_length() -> None:
    asked = task(("user", "x" * 20))
    length = len(Turns.of(LOADED).prompt_ids(asked))
    fits = Turns(LOADED.tokenizer, context_length=length + 5, max_new_tokens=5)
    assert len(fits.prompt_ids(asked)) == length
    tight = Turns(LOADED.tokenizer, context_length=length + 4, max_new_tokens=5)
    with pytest.raises(InputError, match=rf"{length} tokens and 5 new tokens.*{length + 4}") as caught:
        tight.prompt_ids(asked)
    assert caught.value.value == "sum:1"


def test_a_model_without_chat_template_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"chat_template\.jinja"):
        Turns(tokenizer, context_length=64)


def test_a_template_that_refuses_names_the_task() -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(InputError, match=r"environments\.sums = 'sum:1'.*no system role here"):
        Turns(tokenizer, context_length=64).prompt_ids(task(("system", "x")))


def test_text_is_without_special_tokens_and_token_texts_show_them() -> None:
    turns = Turns.of(LOADED)
    ids = [*LOADED.tokenizer.encode("4 !"), *turns.stop_token_ids]
    assert turns.text(ids) == "4 !"
    assert turns.text(np.array(ids, np.int32)) == "4 !"
    assert turns.token_texts(ids) == ["4", " ", "!", "<end>"]


def test_an_id_beyond_the_tokenizer_is_shown_not_lost() -> None:
    turns = Turns.of(LOADED)
    assert turns.token_texts([len(LOADED.tokenizer) + 3]) == [f"<{len(LOADED.tokenizer) + 3}>"]


def test_stop_ids_are_the_models_and_default_to_the_tokenizers() -> None:
    assert Turns.of(LOADED).stop_token_ids == LOADED.facts.eos_token_ids
    assert Turns(LOADED.tokenizer, context_length=64).stop_token_ids == (LOADED.tokenizer.eos_token_id,)
    assert Turns(LOADED.tokenizer, context_length=64, stop_token_ids=[1, 7]).stop_token_ids == (1, 7)


def test_special_tokens_written_by_a_user_are_tokenised_as_the_template_does() -> None:
    # Ids come from one call of the template, not from pieces encoded one by one and joined.
    turns = Turns.of(LOADED)
    asked = task(("user", "a<end>b"))
    rendered = LOADED.tokenizer.apply_chat_template(
        [{"role": "user", "content": "a<end>b"}], tokenize=False, add_generation_prompt=True
    )
    assert turns.prompt_ids(asked).tolist() == LOADED.tokenizer.encode(rendered, add_special_tokens=False)


def test_no_function_takes_text_and_gives_ids() -> None:
    for name, function in inspect.getmembers(Turns, inspect.isfunction):
        annotations = {k: str(v) for k, v in inspect.get_annotations(function).items()}
        takes_text = any(v == "str" for k, v in annotations.items() if k != "return")
        assert not (takes_text and "IntArray" in annotations.get("return", "")), name

"""Tiny models: real classes, reproducible, and a tokenizer that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.model.load import load_policy
from posttrain.model.tiny import CHARACTERS, TINY_KINDS, build_tiny, tiny_tokenizer

TOKENIZER: Any = tiny_tokenizer()


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_same_seed_same_weights_and_the_global_random_state_is_untouched(kind: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (build_tiny(kind, seed)[0].state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_saved_and_loaded_again_it_is_the_same_policy(kind: str, tmp_path: Path) -> None:
    built = load_policy(f"tiny:{kind}", seed=3)
    built.model.save_pretrained(tmp_path)
    built.tokenizer.save_pretrained(tmp_path)
    loaded = load_policy(str(tmp_path))
    ids = torch.tensor([[9, 20, 31, 4, 1, 77]])
    assert torch.equal(loaded.model(ids).logits, built.model(ids).logits)
    assert loaded.facts == built.facts
    assert loaded.tokenizer.chat_template == built.tokenizer.chat_template


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_the_first_policy_is_close_to_uniform(kind: str) -> None:
    model, tokenizer = build_tiny(kind)
    logits = model(torch.arange(40)[None]).logits[0]
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    assert entropy.min() > 0.97 * np.log(len(tokenizer))


def test_the_kinds_cover_what_they_are_for() -> None:
    facts = {kind: load_policy(f"tiny:{kind}").facts for kind in TINY_KINDS}
    assert all(f.heads > f.kv_heads > 1 for f in facts.values())
    assert facts["qwen3_moe"].experts > 1
    gemma: Any = load_policy("tiny:gemma3").model.config
    assert gemma.layer_types == ["sliding_attention", "full_attention"]
    assert facts["gemma3"].sliding_window is not None
    assert {f.tied for f in facts.values()} == {True, False}


@given(st.text(CHARACTERS, max_size=60))
def test_text_survives_the_tokenizer(text: str) -> None:
    assume(not any(token in text for token in TOKENIZER.all_special_tokens))
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_an_unknown_kind_names_those_that_exist() -> None:
    with pytest.raises(InputError, match="tiny:llama"):
        build_tiny("mamba")

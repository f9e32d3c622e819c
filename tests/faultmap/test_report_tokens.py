from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import Characters
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.faultmap.report_tokens import find_tokenizer, token_texts


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(["the answer is the answer 17 - 9\n"] * 50, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def spaces_as_marks() -> Tokenizer:
    """Decodes like sentencepiece: the space at the start of a text is dropped."""
    vocabulary = {"▁the": 0, "▁": 1, "the": 2, "a": 3, "▁a": 4, "<unk>": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def test_the_texts_of_tokens_make_up_the_text(byte_level: Tokenizer) -> None:
    text = 'the answer is 17 - 9 = 8.\n "yes"'
    ids = byte_level.encode(text).ids
    texts = token_texts(byte_level, ids)
    assert "".join(texts[i] for i in ids) == text
    assert any(t.startswith(" ") and len(t) > 1 for t in texts.values())


def test_a_space_at_the_start_of_a_token_is_kept(spaces_as_marks: Tokenizer) -> None:
    assert token_texts(spaces_as_marks, [0, 2, 4]) == {0: " the", 2: "the", 4: " a"}


def test_special_tokens_are_shown_and_unknown_ids_left_out(byte_level: Tokenizer) -> None:
    assert token_texts(byte_level, [0, 99_999]) == {0: "<end>"}


def test_a_damaged_tokenizer_is_named_and_a_missing_one_is_no_problem(tmp_path: Path) -> None:
    assert find_tokenizer(tmp_path) == (None, "")
    (tmp_path / "tokenizer.json").write_text("{}")
    tokenizer, problem = find_tokenizer(tmp_path)
    assert tokenizer is None
    assert "tokenizer.json: is not a readable tokenizer" in problem
    Characters().save(tmp_path / "model" / "tokenizer.json")
    assert find_tokenizer(tmp_path)[0] is not None

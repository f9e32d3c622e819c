"""Adapters: what the sampler gets equals what the trainer computes, and the trainer is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.errors import InputError
from posttrain.model.load import load_policy
from posttrain.model.lora import LoraPolicy, attach_lora, merged_state, save_adapter, save_merged
from posttrain.model.tiny import TINY_KINDS, build_tiny

IDS = torch.tensor([[7, 30, 41, 12, 66, 80, 3]])


def adapted(kind: str = "llama", **settings: Any) -> LoraPolicy:
    """A model whose adapters are no longer the identity."""
    policy = attach_lora(build_tiny(kind)[0], **{"rank": 4, "alpha": 8.0} | settings)
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.trainable.values():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return policy


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_merged_weights_give_the_policy_with_adapters(kind: str) -> None:
    policy = adapted(kind)
    plain: Any = build_tiny(kind)[0]
    base = logits(plain)
    names = list(plain.state_dict())
    merged = merged_state(policy.model)
    assert list(merged) == names
    plain.load_state_dict(merged)
    assert (logits(policy.model) - base).abs().max() > 0.05
    torch.testing.assert_close(logits(plain), logits(policy.model), atol=1e-5, rtol=1e-5)


def test_merging_leaves_the_trainer_as_it_was() -> None:
    policy = adapted()
    model: Any = policy.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged = merged_state(policy.model, torch.bfloat16)
    assert {t.dtype for t in merged.values()} == {torch.bfloat16}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_fresh_adapter_changes_nothing_and_only_adapters_train() -> None:
    model, _ = build_tiny("llama")
    before = logits(model)
    policy = attach_lora(model, rank=4, alpha=4.0)
    assert policy.model is model
    assert torch.equal(logits(model), before)
    assert all(".lora_" in name for name in policy.trainable)


def test_scale_is_alpha_over_rank() -> None:
    policy = adapted(rank=2, alpha=6.0, targets=["q_proj"])
    layer: Any = policy.model.get_submodule("model.layers.0.self_attn.q_proj")
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    merged = merged_state(policy.model)["model.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(merged, layer.base_layer.weight + 3.0 * b @ a)


def test_the_same_seed_gives_the_same_adapters() -> None:
    torch.manual_seed(8)
    state = torch.get_rng_state()
    first, second, other = (attach_lora(build_tiny("qwen3")[0], rank=4, alpha=8.0, seed=s).trainable for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::RuntimeWarning")  # peft's own, on loading
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_a_saved_adapter_loads_in_plain_peft(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = adapted(kind)
    save_adapter(policy, tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    loaded = PeftModel.from_pretrained(build_tiny(kind)[0], str(tmp_path))
    assert torch.equal(logits(loaded), logits(policy.model))


@pytest.mark.parametrize("with_adapter", [True, False])
def test_a_saved_model_loads_in_plain_transformers(with_adapter: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_policy("tiny:gemma3")
    expected_model = adapted("gemma3").model if with_adapter else loaded.model
    save_merged(expected_model, loaded.tokenizer, tmp_path)
    plain: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(expected_model), atol=1e-5, rtol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template


def test_what_cannot_be_adapted_is_refused() -> None:
    with pytest.raises(InputError, match="q_proj"):
        attach_lora(build_tiny("llama")[0], rank=4, alpha=8.0, targets=["query"])
    with pytest.raises(InputError, match="another policy"):
        attach_lora(build_tiny("llama")[0], rank=4, alpha=8.0, dropout=0.1)

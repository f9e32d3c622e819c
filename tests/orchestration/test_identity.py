"""The policy-identity table and the bytes per model copy."""

from __future__ import annotations

import pytest

from posttrain.errors import InputError
from posttrain.orchestration.accounting import ModelCopies, account, memory_json, memory_lines, total_bytes
from posttrain.orchestration.identity import IdentityFacts, policy_identity
from posttrain.rundir.info import PolicyIdentity

_EXACT = {"exact_batching": True, "shared_prompt_sampling": True, "shared_prompt_training": True}


def _row(facts: IdentityFacts, start: str) -> PolicyIdentity:
    (row,) = [r for r in policy_identity(facts) if start in r.optimisation]
    return row


def test_a_plain_synchronous_run_trains_what_it_sampled() -> None:
    rows = policy_identity(IdentityFacts("float32", "float32", **_EXACT))
    assert all(r.logprob_trusted and r.same_objective and not r.corrected_by for r in rows)
    assert {r.optimisation.split(":")[0] for r in rows if r.on} == {"continuous batching", "shared prompt"}


def test_what_changes_the_objective_says_so_and_names_what_corrects_it() -> None:
    facts = IdentityFacts(
        "bfloat16",
        "float32",
        **_EXACT,
        lora=True,
        temperature=0.8,
        group_filter="mixed_success",
        overlong_filter=True,
        soft_overlong=True,
        skip_zero_advantage=True,
        updates_per_batch=2,
        depth=1,
    )
    changed = {r.optimisation.split(":")[0].split(" (")[0] for r in policy_identity(facts) if not r.same_objective}
    assert changed == {
        "asynchronous sampling, 1 batches ahead",
        "group filter",
        "overlong filter",
        "soft overlong penalty",
    }
    assert all(r.on for r in policy_identity(facts))
    assert "same cast" in _row(facts, "cast copy").sampled_by
    assert "rounded to bfloat16" in _row(facts, "LoRA").sampled_by
    assert "trust_region" in _row(facts, "2 updates").corrected_by


def test_several_updates_without_a_ratio_are_not_called_the_same_objective() -> None:
    facts = IdentityFacts("float32", "float32", **_EXACT, updates_per_batch=2, bounded_ratio=False)
    assert not _row(facts, "2 updates").same_objective


def test_the_sampler_as_denominator_is_what_corrects_a_lag() -> None:
    facts = IdentityFacts("float32", "float32", **_EXACT, depth=2, corrects_mismatch=True)
    row = _row(facts, "asynchronous")
    assert row.same_objective
    assert "sampler's log-prob" in row.corrected_by


def test_bytes_per_copy() -> None:
    items = account(
        ModelCopies(
            parameters=1000,
            trainable=1000,
            master_dtype="float32",
            compute_dtype="bfloat16",
            reference=True,
            engine_copy=True,
            kv_bytes=77,
            head_parameters=100,
        )
    )
    assert {i.name: i.bytes for i in items} == {
        "trainer weights": 2000,
        "master weights": 4000,
        "gradients": 4000,
        "optimizer": 8000,
        "engine weights": 2200,
        "reference weights": 2000,
        "keys and values": 77,
    }
    assert total_bytes(items) == 22277


def test_adapters_have_small_gradients_and_shared_weights_cost_nothing() -> None:
    items = {
        i.name: i
        for i in account(ModelCopies(1000, 10, "float32", "float32", reference=False, engine_copy=False, kv_bytes=0))
    }
    assert items["gradients"].bytes == 40
    assert items["optimizer"].bytes == 80
    assert items["engine weights"].bytes == 0
    assert items["engine weights"].shared_with == "trainer weights"
    assert items["master weights"].shared_with == "trainer weights"


def test_a_critic_is_a_second_trained_model_without_the_head_it_does_not_use() -> None:
    copies = ModelCopies(
        1000, 1000, "float32", "bfloat16", reference=False, engine_copy=True, kv_bytes=0, critic=True, unused_head=200
    )
    items = {i.name: i.bytes for i in account(copies)}
    assert items["critic weights"] == 800 * 2
    assert items["critic training"] == 800 * (4 + 4 + 8)
    adapters = account(
        ModelCopies(1000, 10, "bfloat16", "float32", reference=False, engine_copy=True, kv_bytes=0, critic=True)
    )
    items = {i.name: i.bytes for i in adapters}
    assert items["critic weights"] == 4000
    assert items["critic training"] == 10 * (4 + 8)


def test_the_table_fits_80_columns_and_adds_up() -> None:
    items = account(ModelCopies(10**12, 10**9, "float32", "bfloat16", reference=True, engine_copy=True, kv_bytes=2**40))
    lines = memory_lines(items)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("together")
    assert len(memory_json(items)) == len(items)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"model\.compute_dtype = 'float8'"):
        account(ModelCopies(1, 1, "float32", "float8", reference=False, engine_copy=True, kv_bytes=0))


def test_an_average_costs_a_float32_copy_beside_a_narrower_reference() -> None:
    for dtype, expected in (("bfloat16", 4000), ("float32", None)):
        copies = ModelCopies(
            1000,
            1000,
            "float32",
            dtype,
            reference=True,
            engine_copy=True,
            kv_bytes=0,
            teacher_parameters=30,
            average=True,
        )
        items = {item.name: item.bytes for item in account(copies)}
        assert items.get("reference average") == expected
        assert items["teacher weights"] == 30 * (2 if dtype == "bfloat16" else 4)

"""The native engine against the suite: every family, both number types, tied and untied heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_subject import Limits, finish, ids_of, logprobs_of, request
from engine_suite import EngineSuite
from policies import make_model, make_trainer

from posttrain.errors import NonFiniteError
from posttrain.model.weights import WeightSet
from posttrain.rollout.native.engine import NativeEngine, NativeSettings
from posttrain.rollout.native.replica import can_pack


class NativeSuite(EngineSuite):
    kind = "llama"
    dtype = torch.float32

    def make(self, limits: Limits) -> NativeEngine:
        plenty = 1 << 26
        settings = NativeSettings(limits.context_length, limits.kv_bytes or plenty, limits.max_running)
        engine = NativeEngine(make_model(self.kind, 0, self.dtype), self.dtype, settings)
        engine.load_weights(self.weights(0))
        return engine

    def weights(self, version: int) -> WeightSet:
        return WeightSet.of(version, make_trainer(make_model(self.kind, version, self.dtype)).export().tensors)

    def bytes_per_token(self) -> int:
        return 2 * 2 * 2 * 16 * self.dtype.itemsize


class TestLlama(NativeSuite):
    pass


class TestQwen3(NativeSuite):
    kind = "qwen3"


class TestGemma3(NativeSuite):
    kind = "gemma3"


class TestQwen3Moe(NativeSuite):
    kind = "qwen3_moe"


class InBfloat16(NativeSuite):
    """Prefill, decoding and scoring round at different places; the difference is what is measured in a run."""

    dtype = torch.bfloat16
    tolerance = 0.15
    exact_batching = False

    test_greedy_takes_the_likeliest_and_reports_it_at_temperature_one = None
    test_samples_have_the_scored_frequencies = None
    test_a_score_is_a_distribution_and_is_not_scaled_logprobs = None
    test_kv_memory_is_bounded_and_what_does_not_fit_waits = None
    test_a_prompt_shared_by_a_group_is_prefilled_once = None
    test_abort_hands_back_what_there_is = None


class TestLlamaInBfloat16(InBfloat16):
    pass


class TestQwen3InBfloat16(InBfloat16):
    kind = "qwen3"


def test_the_bfloat16_suites_run_on_packed_weights() -> None:
    """Elsewhere they would test the plain path twice."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("oneDNN is not part of this torch")
    assert can_pack(torch.bfloat16, torch.device("cpu"))
    engine = TestQwen3InBfloat16().make(Limits())
    assert engine.replica.nbytes > sum(p.numel() * 2 for p in engine.replica.model.parameters())


def test_without_weights_nothing_is_sampled() -> None:
    model = make_model()
    engine = NativeEngine(model, torch.float32, NativeSettings(64, 1 << 24, 4))
    engine.submit([request("r", [7, 8])])
    with pytest.raises(RuntimeError, match="load_weights"):
        engine.poll()


def test_logits_that_are_not_finite_name_the_request() -> None:
    suite = TestLlama()
    engine = suite.make(Limits())
    weights = suite.weights(0)
    tensors: dict[str, Any] = {n: t.clone() for n, t in weights.tensors.items()}
    tensors["model.layers.1.mlp.down_proj.weight"].fill_(float("nan"))
    engine.load_weights(WeightSet.of(3, tensors))
    with pytest.raises(NonFiniteError, match=r"token 0 of first are not finite under policy version 3"):
        finish(engine, [request("first", [7, 8, 9]), request("second", [9, 8])])


def test_the_replica_is_a_copy_that_training_does_not_touch() -> None:
    model = make_model()
    trainer = make_trainer(model)
    engine = NativeEngine(model, torch.float32, NativeSettings(64, 1 << 24, 4))
    engine.load_weights(trainer.export())
    before = finish(engine, [request("r", [7, 8, 9], 6)])["r"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = finish(engine, [request("r", [7, 8, 9], 6)])["r"]
    assert ids_of(after) == ids_of(before)
    np.testing.assert_array_equal(logprobs_of(after), logprobs_of(before))

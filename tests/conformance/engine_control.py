"""Aborting, pausing, and new weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_subject import EngineSubject, Limits, drain, finish, ids_of, logprobs_of, request

from posttrain.model.weights import WeightMismatchError, WeightSet
from posttrain.rollout.protocol import Engine
from posttrain.trajectory import FinishReason


class ControlSuite(EngineSubject):
    """What the one who runs an engine does to it."""

    def test_abort_hands_back_what_there_is(self) -> None:
        engine = self.make(Limits(max_running=2))
        requests = [request(f"r{i}", self.prompt(5, i), 12, i, ignore_stop=True) for i in range(4)]
        engine.submit(requests)
        for _ in range(3):
            assert engine.poll() == []
        aborted = {c.request_id: c for c in engine.abort(["r0", "r3", "unknown"])}
        assert aborted.keys() == {"r0", "r3"}
        assert {c.finish_reason for c in aborted.values()} == {FinishReason.ABORTED}
        assert aborted["r3"].segments == ()
        rest = drain(engine, 2)
        assert rest.keys() == {"r1", "r2"}
        whole = self.make(Limits())
        full = finish(whole, requests)
        part = ids_of(aborted["r0"])
        assert 0 < len(part) < 12
        assert part == ids_of(full["r0"])[: len(part)]
        assert ids_of(rest["r1"]) == ids_of(full["r1"])
        whole.close()
        engine.close()

    def test_pause_keeps_and_resume_goes_on_as_if_nothing_was(self, engine: Engine) -> None:
        requests = [request(f"r{i}", self.prompt(5, i), 10, i, ignore_stop=True) for i in range(3)]
        whole = finish(engine, requests)
        engine.submit(requests)
        engine.poll()
        engine.pause()
        before = engine.stats()
        assert [engine.poll() for _ in range(3)] == [[], [], []]
        assert engine.stats() == before
        engine.resume()
        for name, completion in drain(engine, 3).items():
            assert ids_of(completion) == ids_of(whole[name])

    def test_pause_with_abort_empties_the_engine(self) -> None:
        engine = self.make(Limits(max_running=1))
        engine.submit([request(f"r{i}", self.prompt(5, i), 10, i) for i in range(3)])
        engine.poll()
        engine.pause("abort")
        done = engine.poll()
        assert {c.request_id: c.finish_reason for c in done} == {f"r{i}": FinishReason.ABORTED for i in range(3)}
        stats = engine.stats()
        assert stats.running == stats.waiting == 0
        engine.resume()
        assert len(ids_of(finish(engine, [request("next", self.prompt(4), 3)])["next"])) == 3
        engine.close()

    def test_new_weights_change_version_scores_and_samples_alike(self, engine: Engine) -> None:
        prompt = self.prompt(9)
        old = finish(engine, [request("r", prompt, 10)])["r"]
        assert {s.policy_version for s in old.segments} == {0}
        assert engine.load_weights(self.weights(4)) == 4
        new = finish(engine, [request("r", prompt, 10)])["r"]
        assert {s.policy_version for s in new.segments} == {4}
        assert engine.stats().policy_version == 4
        assert ids_of(new) != ids_of(old)
        row = np.concatenate([prompt, ids_of(new)]).astype(np.int32)
        np.testing.assert_allclose(logprobs_of(new), engine.score([row])[0][len(prompt) :], rtol=0, atol=self.tolerance)
        assert engine.load_weights(self.weights(0)) == 0
        assert ids_of(finish(engine, [request("r", prompt, 10)])["r"]) == ids_of(old)

    def test_wrong_weights_are_refused_and_the_old_ones_stay(self, engine: Engine) -> None:
        good = self.weights(1)
        name = sorted(good.tensors)[1]
        flipped = good.tensors[name].clone()
        flipped.view(-1)[0] += 1
        without = {n: t for n, t in good.tensors.items() if n != name}
        extra = dict(good.tensors) | {"model.layers.0.extra": torch.ones(2)}
        prompt = self.prompt(5)
        before = ids_of(finish(engine, [request("r", prompt, 8)])["r"])
        for wrong, message in (
            (replace(good, tensors=_with(good.tensors, name, flipped)), name),
            (replace(good, tensors=without), "missing"),
            (WeightSet.of(1, without), "missing"),
            (WeightSet.of(1, extra), "unknown"),
            (WeightSet.of(1, _with(good.tensors, name, good.tensors[name].flatten()[:-1].clone())), name),
        ):
            with pytest.raises(WeightMismatchError, match=message):
                engine.load_weights(wrong)
            assert engine.stats().policy_version == 0
        assert ids_of(finish(engine, [request("r", prompt, 8)])["r"]) == before

    def test_weights_wait_until_no_request_is_running(self, engine: Engine) -> None:
        if engine.capabilities.in_flight_weight_update:
            pytest.skip("this engine takes weights in flight")
        engine.submit([request("r", self.prompt(5), 6, ignore_stop=True)])
        engine.poll()
        with pytest.raises(RuntimeError, match="running"):
            engine.load_weights(self.weights(1))
        assert len(ids_of(drain(engine, 1)["r"])) == 6
        assert engine.load_weights(self.weights(1)) == 1


def _with(tensors: Mapping[str, torch.Tensor], name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**tensors, name: value}

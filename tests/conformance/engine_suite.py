"""What every engine must do. Subclass ``EngineSuite`` in a test module, give it engines, and pytest runs it all.

A subclass named ``Test...`` defines ``make`` and, where its engine needs it, loosens ``tolerance`` or turns off what
its ``capabilities`` do not promise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from posttrain.errors import InputError
from posttrain.model.weights import WeightMismatchError, WeightSet
from posttrain.rollout.protocol import Completion, Engine, Request
from posttrain.trajectory import FinishReason, SamplingParams

STOP = 5


@dataclass(frozen=True)
class Limits:
    """What an engine is built with. ``kv_bytes`` of ``None`` is plenty."""

    context_length: int = 96
    max_running: int = 64
    kv_bytes: int | None = None


def request(
    name: str, prompt: Sequence[int] | np.ndarray, new: int = 8, seed: int = 0, temperature: float = 1.0, **other: Any
) -> Request:
    """One request with prompt ids and sampling parameters."""
    sampling = SamplingParams(new, temperature, seed=seed, **other)
    return Request(name, np.asarray(prompt, np.int32), sampling)


def finish(engine: Engine, requests: Sequence[Request], limit: int = 5000) -> dict[str, Completion]:
    """Submit and poll until all are finished."""
    engine.submit(requests)
    return drain(engine, len(requests), limit)


def drain(engine: Engine, count: int, limit: int = 5000) -> dict[str, Completion]:
    """Poll until ``count`` completions have come out."""
    found: dict[str, Completion] = {}
    for _ in range(limit):
        for completion in engine.poll():
            assert completion.request_id not in found, "a completion came twice"
            found[completion.request_id] = completion
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} requests finished after {limit} polls: {engine.stats()}")


def ids_of(completion: Completion) -> list[int]:
    """Sampled ids."""
    return [int(i) for segment in completion.segments for i in segment.token_ids]


def logprobs_of(completion: Completion) -> np.ndarray:
    """Their log-probs."""
    parts = [s.logprobs for s in completion.segments if s.logprobs is not None]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


class EngineSuite(ABC):
    """See the module. ``tolerance`` is in nats between a sampled token's log-prob and its score."""

    tolerance = 1e-4
    vocabulary = 102
    exact_batching = True

    @abstractmethod
    def make(self, limits: Limits) -> Engine:
        """A fresh engine with the weights of ``weights(0)``."""

    @abstractmethod
    def weights(self, version: int) -> WeightSet:
        """Complete weights of a version; different versions hold different values."""

    @abstractmethod
    def bytes_per_token(self) -> int:
        """KV bytes of one token of one request."""

    @pytest.fixture
    def engine(self) -> Any:
        torch.set_num_threads(1)
        engine = self.make(Limits())
        yield engine
        engine.close()

    def prompt(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(6, self.vocabulary, length).astype(np.int32)

    # Ids and log-probs -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
    def test_logprobs_are_of_the_distribution_really_sampled(self, engine: Engine, temperature: float) -> None:
        requests = [request(f"r{i}", self.prompt(3 + 5 * i, i), 12, i, temperature) for i in range(6)]
        done = finish(engine, requests)
        rows = [np.concatenate([r.token_ids, ids_of(done[r.request_id])]).astype(np.int32) for r in requests]
        for r, score in zip(requests, engine.score(rows, temperature), strict=True):
            assert score.dtype == np.float32
            assert np.isnan(score[0])
            completion = done[r.request_id]
            np.testing.assert_allclose(logprobs_of(completion), score[len(r.token_ids) :], rtol=0, atol=self.tolerance)
            assert len(ids_of(completion)) == 12
            assert all(0 <= i < self.vocabulary for i in ids_of(completion))
            assert completion.submitted <= completion.first_token <= completion.finished

    def test_a_score_is_a_distribution_and_is_not_scaled_logprobs(self, engine: Engine) -> None:
        prompt = self.prompt(5)
        rows = [np.append(prompt, i).astype(np.int32) for i in range(self.vocabulary)]
        plain = np.array([s[-1] for s in engine.score(rows)], np.float64)
        sharp = np.array([s[-1] for s in engine.score(rows, 0.5)], np.float64)
        slack = 20 * self.tolerance
        assert abs(np.exp(plain).sum() - 1) < slack
        assert abs(np.exp(sharp).sum() - 1) < slack
        expected = plain / 0.5 - np.log(np.exp(plain / 0.5).sum())
        np.testing.assert_allclose(sharp, expected, atol=slack)

    def test_greedy_takes_the_likeliest_and_reports_it_at_temperature_one(self, engine: Engine) -> None:
        prompt = self.prompt(7)
        done = finish(engine, [request("g", prompt, 6, temperature=0.0), request("s", prompt, 6)])
        ids = ids_of(done["g"])
        whole = np.concatenate([prompt, ids]).astype(np.int32)
        np.testing.assert_allclose(
            logprobs_of(done["g"]), engine.score([whole])[0][len(prompt) :], rtol=0, atol=self.tolerance
        )
        for step in range(6):
            others = [np.append(whole[: len(prompt) + step], i).astype(np.int32) for i in range(self.vocabulary)]
            scores = [float(s[-1]) for s in engine.score(others)]
            assert scores[ids[step]] >= max(scores) - self.tolerance

    def test_samples_have_the_scored_frequencies(self, engine: Engine) -> None:
        """Chi-square of 4000 first tokens against the scores, at the limit of one false alarm in 10^5."""
        prompt, count = self.prompt(4), 4000
        done: dict[str, Completion] = {}
        for start in range(0, count, 500):
            batch = [request(f"r{i}", prompt, 1, seed=i * 7919) for i in range(start, start + 500)]
            done |= finish(engine, batch)
        counts = np.bincount([ids_of(c)[0] for c in done.values()], minlength=self.vocabulary)
        rows = [np.append(prompt, i).astype(np.int32) for i in range(self.vocabulary)]
        expected = count * np.exp([float(s[-1]) for s in engine.score(rows)])
        order = np.argsort(expected)
        pooled_expected, pooled = [0.0], [0]
        for index in order:
            pooled_expected[-1] += expected[index]
            pooled[-1] += int(counts[index])
            if pooled_expected[-1] >= 8:
                pooled_expected.append(0.0)
                pooled.append(0)
        pooled_expected[-2] += pooled_expected.pop()
        pooled[-2] += pooled.pop()
        observed, wanted = np.array(pooled), np.array(pooled_expected)
        freedom = len(observed) - 1
        assert freedom > 5
        statistic = float(((observed - wanted) ** 2 / wanted).sum())
        # Wilson-Hilferty: the cube root of chi-square over its freedom is nearly normal.
        z = ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / np.sqrt(2 / (9 * freedom))
        assert z < 4.3

    # Ends ------------------------------------------------------------------------------------------------------

    def test_a_stop_id_ends_a_request_and_is_part_of_it(self, engine: Engine) -> None:
        stops = tuple(range(0, self.vocabulary, 2))
        requests = [request(f"r{i}", self.prompt(4, i), 12, i, stop_token_ids=stops) for i in range(20)]
        done = finish(engine, requests)
        reasons = []
        for completion in done.values():
            ids = ids_of(completion)
            stopped = ids[-1] in stops
            assert not set(ids[:-1]) & set(stops)
            assert stopped or len(ids) == 12
            assert completion.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            reasons.append(completion.finish_reason)
        assert reasons.count(FinishReason.STOP) >= 5
        assert len({len(ids_of(c)) for c in done.values()}) > 1

    def test_ignore_stop_forces_the_length(self, engine: Engine) -> None:
        stops = tuple(range(self.vocabulary))
        done = finish(engine, [request("r", self.prompt(4), 9, stop_token_ids=stops, ignore_stop=True)])
        assert len(ids_of(done["r"])) == 9
        assert done["r"].finish_reason is FinishReason.LENGTH

    def test_the_context_ends_what_max_new_tokens_does_not(self) -> None:
        engine = self.make(Limits(context_length=20))
        done = finish(engine, [request("long", self.prompt(15), 50), request("fits", self.prompt(15), 5, 1)])
        assert done["long"].finish_reason is FinishReason.CONTEXT
        assert len(ids_of(done["long"])) == 5
        assert done["fits"].finish_reason is FinishReason.LENGTH
        engine.close()

    @pytest.mark.parametrize(
        ("prompt_length", "new", "words"), [(20, 4, "context"), (25, 4, "context"), (0, 4, "bad"), (3, 0, "bad")]
    )
    def test_what_can_never_run_is_refused_and_nothing_is_queued(
        self, prompt_length: int, new: int, words: str
    ) -> None:
        engine = self.make(Limits(context_length=20))
        with pytest.raises(InputError, match=words):
            engine.submit([request("good", self.prompt(3)), request("bad", self.prompt(prompt_length), new)])
        assert engine.stats().waiting == 0
        assert engine.poll() == []
        engine.close()

    @pytest.mark.parametrize("other", [{"top_p": 0.9}, {"top_k": 5}])
    def test_truncated_sampling_is_refused_unless_promised(self, engine: Engine, other: dict[str, Any]) -> None:
        if engine.capabilities.truncated_sampling:
            finish(engine, [request("r", self.prompt(3), **other)])
        else:
            with pytest.raises(InputError, match=r"top_p"):
                engine.submit([request("r", self.prompt(3), **other)])

    # Independence ----------------------------------------------------------------------------------------------

    def test_a_request_does_not_depend_on_its_company(self, engine: Engine) -> None:
        if not self.exact_batching:
            pytest.skip("this engine's numbers depend on the batch")
        mixed = [
            request(f"r{i}", self.prompt(2 + 3 * (i % 5), i % 7), 4 + 3 * (i % 6), 100 + i, (1.0, 0.7, 0.0)[i % 3])
            for i in range(14)
        ]
        together = finish(engine, mixed)
        for limits in (Limits(max_running=1), Limits(max_running=3)):
            other = self.make(limits)
            alone = finish(other, mixed[::-1])
            for r in mixed:
                assert ids_of(alone[r.request_id]) == ids_of(together[r.request_id])
                np.testing.assert_allclose(
                    logprobs_of(alone[r.request_id]), logprobs_of(together[r.request_id]), rtol=0, atol=1e-4
                )
            other.close()

    def test_the_seed_alone_decides(self, engine: Engine) -> None:
        prompt = self.prompt(6)
        done = finish(engine, [request(f"r{i}", prompt, 16, seed=i // 2) for i in range(6)])
        drawn = [tuple(ids_of(done[f"r{i}"])) for i in range(6)]
        assert drawn[0] == drawn[1]
        assert len(set(drawn)) == 3
        again = finish(engine, [request("other name", prompt, 16, seed=1)])
        assert tuple(ids_of(again["other name"])) == drawn[2]

    # Batching and memory ---------------------------------------------------------------------------------------

    def test_finished_rows_leave_and_waiting_ones_enter(self) -> None:
        engine = self.make(Limits(max_running=3))
        lengths = [2, 9, 4, 3, 7, 2, 8, 1, 5, 6]
        engine.submit([request(f"r{i}", self.prompt(4, i), n, i, ignore_stop=True) for i, n in enumerate(lengths)])
        assert engine.stats().waiting == 10
        found: dict[str, Completion] = {}
        while len(found) < 10:
            found |= {c.request_id: c for c in engine.poll()}
            stats = engine.stats()
            assert stats.running <= 3
            assert stats.running + stats.waiting + len(found) == 10
        assert [len(ids_of(found[f"r{i}"])) for i in range(10)] == lengths
        stats = engine.stats()
        assert stats.generated_tokens == sum(lengths)
        # Three places for 47 tokens, ten of them sampled by the prefill: waiting for the slowest of each three would
        # take (9 + 7 + 8 + 6) - 4 = 26 steps.
        assert stats.decode_steps <= 17
        engine.close()

    def test_a_prompt_shared_by_a_group_is_prefilled_once(self, engine: Engine) -> None:
        if not engine.capabilities.prefix_sharing:
            pytest.skip("this engine does not share prompts")
        prompts = [self.prompt(11, 1), self.prompt(6, 2)]
        done = finish(engine, [request(f"r{i}", prompts[i % 2], 5, i) for i in range(16)])
        stats = engine.stats()
        assert stats.prefilled_tokens == 11 + 6
        assert stats.shared_prompt_tokens == 7 * (11 + 6)
        alone = self.make(Limits(max_running=1))
        single = finish(alone, [request("r3", prompts[1], 5, 3)])
        assert ids_of(single["r3"]) == ids_of(done["r3"])
        alone.close()

    def test_prompts_that_begin_alike_are_as_if_each_were_alone(self, engine: Engine) -> None:
        start = self.prompt(14, 1)
        prompts = [np.append(start, self.prompt(n, 10 + n)).astype(np.int32) for n in (1, 6, 3)]
        prompts += [start, start[:9], self.prompt(14, 2), prompts[0]]
        requests = [request(f"r{i}", p, 6, i, ignore_stop=True) for i, p in enumerate(prompts)]
        together = finish(engine, requests)
        stats = engine.stats()
        total = sum(map(len, prompts))
        assert stats.prefilled_tokens + stats.shared_prompt_tokens == total
        if engine.capabilities.prefix_sharing:
            assert stats.prefilled_tokens < total - len(prompts[0])
        for r in requests:
            ids = ids_of(together[r.request_id])
            row = np.concatenate([r.token_ids, ids]).astype(np.int32)
            score = engine.score([row])[0][len(r.token_ids) :]
            np.testing.assert_allclose(logprobs_of(together[r.request_id]), score, rtol=0, atol=self.tolerance)
            if self.exact_batching:
                assert ids == ids_of(finish(engine, [r])[r.request_id])

    def test_kv_memory_is_bounded_and_what_does_not_fit_waits(self) -> None:
        need = 64 * self.bytes_per_token()
        engine = self.make(Limits(kv_bytes=3 * need))
        requests = [request(f"r{i}", self.prompt(20, i), 40 if i % 3 else 3, i, ignore_stop=True) for i in range(9)]
        engine.submit(requests)
        found: dict[str, Completion] = {}
        most = 0
        while len(found) < len(requests):
            found |= {c.request_id: c for c in engine.poll()}
            stats = engine.stats()
            assert stats.kv_bytes_used <= stats.kv_bytes_allocated <= stats.kv_bytes_limit == 3 * need
            most = max(most, stats.running)
        assert 2 <= most <= 9
        roomy = self.make(Limits())
        for name, completion in finish(roomy, requests).items():
            assert ids_of(found[name]) == ids_of(completion)
        engine.close()
        roomy.close()

    def test_many_short_rows_then_a_long_one_stay_within_the_bound(self) -> None:
        """The rows held for the short ones must not be kept at the long one's length."""
        limit = 10 * 32 * self.bytes_per_token()
        engine = self.make(Limits(kv_bytes=limit))
        short = [request(f"s{i}", self.prompt(8, i), 20 if i == 0 else 2, i, ignore_stop=True) for i in range(10)]
        engine.submit([*short, request("long", self.prompt(70), 20, ignore_stop=True)])
        found: dict[str, Completion] = {}
        while len(found) < 11:
            found |= {c.request_id: c for c in engine.poll()}
            assert engine.stats().kv_bytes_allocated <= limit
        assert len(ids_of(found["long"])) == 20
        engine.close()

    def test_memory_used_is_that_of_running_tokens(self) -> None:
        """What is allocated stays when rows leave, so it says nothing about use."""
        engine = self.make(Limits())
        assert engine.stats().kv_bytes_used == 0
        lengths = [3, 30, 9]
        engine.submit([request(f"r{i}", self.prompt(5 + i, i), n, i, ignore_stop=True) for i, n in enumerate(lengths)])
        running = dict(enumerate(lengths))
        used: list[int] = []
        while running:
            done = engine.poll()
            for completion in done:
                del running[int(completion.request_id[1:])]
            used.append(engine.stats().kv_bytes_used)
            assert len(running) * 5 <= used[-1] / self.bytes_per_token() <= sum(7 + n for n in running.values())
            assert used[-1] <= engine.stats().kv_bytes_allocated
        assert used[-1] == 0 < max(used)
        engine.close()

    def test_a_request_larger_than_the_memory_is_refused(self) -> None:
        engine = self.make(Limits(kv_bytes=32 * self.bytes_per_token()))
        with pytest.raises(InputError, match=r"rollout\.kv_memory_mb") as caught:
            engine.submit([request("r", self.prompt(20), 40)])
        assert "\n" not in str(caught.value)
        engine.close()

    # Control ---------------------------------------------------------------------------------------------------

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

    # Weights ---------------------------------------------------------------------------------------------------

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

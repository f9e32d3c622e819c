"""How requests share the engine's places and its KV memory."""

from __future__ import annotations

import numpy as np
import pytest
from engine_subject import EngineSubject, Limits, finish, ids_of, logprobs_of, request

from posttrain.errors import InputError
from posttrain.rollout.protocol import Completion, Engine


class MemorySuite(EngineSubject):
    """Continuous batching, shared prompts, bounds of memory."""

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

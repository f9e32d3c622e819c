"""Which ids an engine samples, with which log-probs, and that nothing but the request decides."""

from __future__ import annotations

import numpy as np
import pytest
from engine_subject import EngineSubject, Limits, finish, ids_of, logprobs_of, request

from posttrain.rollout.protocol import Completion, Engine


class TokenSuite(EngineSubject):
    """Ids, log-probs, scores, seeds."""

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

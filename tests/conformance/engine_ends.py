"""When a request ends, and which can never run."""

from __future__ import annotations

from typing import Any

import pytest
from engine_subject import EngineSubject, Limits, finish, ids_of, request

from posttrain.errors import InputError
from posttrain.rollout.protocol import Engine
from posttrain.trajectory import FinishReason


class EndSuite(EngineSubject):
    """Stop ids, lengths, the context, refusals."""

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

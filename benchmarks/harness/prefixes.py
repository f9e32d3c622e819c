"""Success by prefix: what becomes of an attempt whose first tokens somebody else wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.environment.grading import GradedTasks
from posttrain.environment.protocol import Attempt
from posttrain.rollout.protocol import Completion, Engine, Request
from posttrain.rollout.turns import Turns
from posttrain.trajectory import FinishReason, IntArray, Message, SamplingParams, Task


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt at a task: its sampled tokens, and whether it succeeded."""

    task: Task
    token_ids: IntArray
    success: bool


def continued(
    engine: Engine,
    turns: Turns,
    environment: GradedTasks,
    starts: Sequence[tuple[Task, IntArray]],
    sampling: SamplingParams,
) -> list[Attempted]:
    """Let the engine's policy finish each start (a task and the answer's first tokens, possibly none) and grade the
    whole answer. A start that is finished already is graded as it is."""
    done: dict[str, Completion] = {}
    requests: list[Request] = []
    for number, (task, prefix) in enumerate(starts):
        room = sampling.max_new_tokens - len(prefix)
        if room > 0 and not (len(prefix) and int(prefix[-1]) in sampling.stop_token_ids):
            ids = np.concatenate([turns.prompt_ids(task), prefix]).astype(np.int32)
            params = SamplingParams(
                room, sampling.temperature, seed=sampling.seed + number, stop_token_ids=sampling.stop_token_ids
            )
            requests.append(Request(str(number), ids, params))
    engine.submit(requests)
    while len(done) < len(requests):
        done |= {completion.request_id: completion for completion in engine.poll()}
    attempts: list[Attempt] = []
    answers: list[IntArray] = []
    for number, (task, prefix) in enumerate(starts):
        completion = done.get(str(number))
        rest = [s.token_ids for s in completion.segments] if completion else []
        ids = np.concatenate([prefix, *rest]).astype(np.int32)
        text = turns.text(ids)
        reason = completion.finish_reason if completion else _finished(ids, sampling)
        messages = (*turns.conversation(task), Message("assistant", text))
        attempts.append(Attempt(task, text, messages, reason, len(ids), str(number)))
        answers.append(ids)
    grades = environment.grade(attempts)
    return [
        Attempted(task, ids, grade.reward is not None and grade.reward >= environment.success_threshold)
        for (task, _), ids, grade in zip(starts, answers, grades, strict=True)
    ]


def _finished(ids: IntArray, sampling: SamplingParams) -> FinishReason:
    return FinishReason.STOP if int(ids[-1]) in sampling.stop_token_ids else FinishReason.LENGTH


def success_by_prefix(
    engine: Engine,
    turns: Turns,
    environment: GradedTasks,
    written: Sequence[Attempted],
    lengths: Sequence[int],
    sampling: SamplingParams,
) -> dict[int, float]:
    """Share of successes when the engine's policy goes on after the first tokens of ``written``, by their number."""
    return {
        length: float(
            np.mean(
                [
                    a.success
                    for a in continued(
                        engine, turns, environment, [(w.task, w.token_ids[:length]) for w in written], sampling
                    )
                ]
            )
        )
        for length in lengths
    }

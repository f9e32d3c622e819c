"""From trajectories to estimates: what counts, what does not, and for whom."""

from __future__ import annotations

import json

import numpy as np
import pytest

from posttrain.orchestration.evaluation import EvaluationSet, Sample, TaskResult, collect, summarize
from posttrain.signals.registry import signal_for
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    Role,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
)


def _trajectory(
    task_id: str,
    index: int,
    reward: float | None,
    *,
    tokens: int = 4,
    finish: FinishReason = FinishReason.STOP,
    temperature: float = 1.0,
    parsable: float | None = 1.0,
    cluster: str | None = None,
) -> Trajectory:
    metadata = {} if cluster is None else {"cluster": cluster}
    task = Task(task_id, (Message("user", "?"),), 1, "env", metadata)
    trajectory = Trajectory(
        f"{task_id}/{index}", task_id, task, SamplingParams(8, temperature=temperature), Role.EVALUATION
    )
    trajectory.append(Segment(Origin.PROMPT, np.arange(3, dtype=np.int32)))
    ids = np.arange(tokens, dtype=np.int32)
    trajectory.append(Segment(Origin.MODEL, ids, np.zeros(tokens, np.float32), 0))
    trajectory.finish_reason = finish
    status = GradeStatus.UNGRADABLE if reward is None else GradeStatus.GRADED
    trajectory.grade = Grade(status, reward, {} if parsable is None else {"parsable": parsable}, "")
    return trajectory


def test_ungradable_attempts_never_count_as_wrong() -> None:
    results = collect(
        "env",
        [_trajectory("a", i, r) for i, r in enumerate([1.0, 1.0, None, None])]
        + [_trajectory("b", i, None) for i in range(4)],
        success_threshold=1.0,
    )
    summary = summarize(results, [1, 2, 4])
    assert summary.pass_at[1].value == 1.0
    assert summary.reward is not None
    assert summary.reward.value == 1.0
    assert summary.ungradable_share == 0.75
    assert summary.tasks_without_grade == 1
    assert 4 not in summary.pass_at, "no task has four graded attempts"
    assert summary.pass_at[2].tasks == 1


def test_an_aborted_attempt_has_no_say_whatever_its_grade() -> None:
    results = collect(
        "env",
        [_trajectory("a", 0, 1.0), _trajectory("a", 1, 0.0, finish=FinishReason.ABORTED)],
        success_threshold=1.0,
    )
    assert results.tasks[0].attempts == 1
    assert summarize(results, [1]).pass_at[1].value == 1.0


def test_greedy_attempts_are_kept_apart() -> None:
    results = collect(
        "env",
        [_trajectory("a", 0, 0.0), _trajectory("a", 1, 0.0), _trajectory("a", 2, 1.0, temperature=0.0)],
        success_threshold=1.0,
    )
    summary = summarize(results, [1])
    assert summary.greedy is not None
    assert summary.greedy.value == 1.0
    assert summary.pass_at[1].value == 0.0
    assert summary.samples == 2


def test_success_is_the_threshold_of_the_environment() -> None:
    results = collect("env", [_trajectory("a", i, r) for i, r in enumerate([0.4, 0.5])], success_threshold=0.5)
    assert [s.success for s in results.tasks[0].samples] == [False, True]


def test_tasks_weigh_the_same_however_many_attempts_they_have() -> None:
    results = collect(
        "env",
        [_trajectory("a", i, 1.0) for i in range(9)] + [_trajectory("b", 0, 0.0)],
        success_threshold=1.0,
    )
    summary = summarize(results, [1])
    assert summary.pass_at[1].value == 0.5
    assert summary.reward is not None
    assert summary.reward.value == 0.5


def test_truncation_length_and_parsable_share() -> None:
    results = collect(
        "env",
        [
            _trajectory("a", 0, 1.0, tokens=2),
            _trajectory("a", 1, 0.0, tokens=8, finish=FinishReason.LENGTH, parsable=0.0),
            _trajectory("a", 2, 0.0, tokens=2),
            _trajectory("a", 3, None, tokens=8, finish=FinishReason.LENGTH),
        ],
        success_threshold=1.0,
    )
    summary = summarize(results, [1])
    assert summary.truncated_share == 0.5
    assert summary.length is not None
    assert summary.length.value == 5.0
    assert summary.parsable_share is not None
    assert summary.parsable_share.value == pytest.approx(2 / 3)
    assert summary.correct_given_parsable == pytest.approx(1 / 2)


def test_majority_votes_on_extracted_answers_and_only_if_there_are_any() -> None:
    trajectories = [_trajectory("a", i, float(i < 2)) for i in range(5)]
    answers = {f"a/{i}": answer for i, answer in enumerate(["8", "8", "3", "4", "5"])}
    voting = collect("env", trajectories, success_threshold=1.0, extract=lambda t: answers[t.trajectory_id])
    summary = summarize(voting, [1, 5])
    assert summary.pass_at[1].value == pytest.approx(0.4)
    assert summary.majority_at[5].value == 1.0
    silent = collect("env", trajectories, success_threshold=1.0)
    assert summarize(silent, [1]).majority_at == {}


def test_intervals_resample_the_clusters_the_environment_names() -> None:
    def results(clustered: bool) -> EvaluationSet:
        return collect(
            "env",
            [_trajectory(f"t{i}", 0, float(i % 4 == 0), cluster=str(i % 4) if clustered else None) for i in range(40)],
            success_threshold=1.0,
        )

    apart, together = (summarize(results(c), [1]).pass_at[1] for c in (False, True))
    assert together.value == apart.value
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_cost_curve_spends_k_times_the_mean_length() -> None:
    sample = {True: Sample(1.0, True, 10, False), False: Sample(0.0, False, 30, False)}
    task = TaskResult("a", "a", tuple(sample[i == 0] for i in range(4)))
    curve = summarize(EvaluationSet("env", (task,)), [1]).cost_curve
    assert [(p.k, p.tokens) for p in curve] == [(1, 25.0), (2, 50.0), (4, 100.0)]
    assert [p.success.value for p in curve] == [0.25, 0.5, 1.0]


def test_nothing_graded_is_reported_and_not_invented() -> None:
    summary = summarize(collect("env", [_trajectory("a", 0, None)], success_threshold=1.0), [1, 4])
    assert summary.reward is None
    assert summary.pass_at == {}
    assert summary.cost_curve == ()
    assert summary.signals() == {
        "evaluation/env/tasks": 1.0,
        "evaluation/env/ungradable_share": 1.0,
        "evaluation/env/truncated_share": 0.0,
        "evaluation/env/length_mean": 4.0,
    }
    assert summarize(EvaluationSet("env", ()), [1]).tasks == 0


def test_signals_and_json_hold_the_same_numbers() -> None:
    results = collect(
        "env", [_trajectory("a", i, float(i == 0)) for i in range(4)], success_threshold=1.0, extract=lambda t: "x"
    )
    summary = summarize(results, [1, 4])
    data = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    signals = summary.signals()
    assert signals["evaluation/env/pass@1"] == data["pass_at"]["1"]["value"] == 0.25
    assert signals["evaluation/env/pass@1_low"] == data["pass_at"]["1"]["low"]
    assert signals["evaluation/env/majority@4"] == data["majority_at"]["4"]["value"] == 0.25
    assert signals["evaluation/env/parsable_share"] == 1.0


def test_every_signal_emitted_is_registered() -> None:
    results = collect(
        "env",
        [_trajectory("a", i, 1.0) for i in range(4)] + [_trajectory("a", 4, 1.0, temperature=0.0)],
        success_threshold=1.0,
        extract=lambda t: "x",
    )
    for name in summarize(results, [1, 4]).signals():
        assert signal_for(name).definition

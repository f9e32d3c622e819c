"""The order of drawing: reproducible, resumable, complete, in proportion."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.environment.grading import GradedTasks, PureGrader, graded
from posttrain.environment.mixture import Cursor, TaskSampler, check_tasks
from posttrain.environment.protocol import TaskSplit
from posttrain.errors import InputError
from posttrain.trajectory import Message, Task


def environment(name: str, size: int, questions: str = "q") -> GradedTasks:
    tasks = tuple(Task(f"{name}{i}", (Message("user", f"{questions}{name}{i}"),), i, name) for i in range(size))
    return GradedTasks(name, TaskSplit(tasks), PureGrader(lambda _: graded(1.0, {}), lambda text: text))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 9), max_size=6),
)
def test_drawing_in_steps_with_restarts_equals_drawing_at_once(seed: int, sizes: list[int], steps: list[int]) -> None:
    environments = [environment("abc"[i], size) for i, size in enumerate(sizes)]
    sampler = TaskSampler(environments, seed)
    whole, end = sampler.draw(sum(steps), sampler.start())
    pieces, cursor = [], sampler.start()
    for count in steps:
        restarted = TaskSampler(environments, seed)
        stored = Cursor.from_json(json.loads(json.dumps(cursor.to_json())))
        drawn, cursor = restarted.draw(count, stored)
        pieces += drawn
    assert pieces == whole
    assert cursor == end


def test_each_pass_holds_every_task_once_in_another_order() -> None:
    sampler = TaskSampler([environment("a", 20)], seed=1)
    draws, _ = sampler.draw(60, sampler.start())
    passes = [[d.task.task_id for d in draws[i : i + 20]] for i in (0, 20, 40)]
    assert all(len(set(p)) == 20 for p in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [d.epoch for d in draws] == [0] * 20 + [1] * 20 + [2] * 20
    assert len({(d.task.task_id, d.epoch, d.draw) for d in draws}) == 60


def test_seeds_give_other_orders_and_the_cursor_is_not_changed() -> None:
    first, second = (TaskSampler([environment("a", 20)], seed) for seed in (1, 2))
    start = first.start()
    assert first.draw(20, start)[0] == first.draw(20, start)[0]
    ids = [[d.task.task_id for d in s.draw(20, s.start())[0]] for s in (first, second)]
    assert ids[0] != ids[1]


def test_every_stretch_holds_environments_in_proportion() -> None:
    sampler = TaskSampler([environment("a", 5), environment("b", 50)], 0, {"a": 3.0, "b": 1.0})
    draws, _ = sampler.draw(80, sampler.start())
    for start in range(0, 80, 8):
        counts = Counter(d.task.environment for d in draws[start : start + 8])
        assert abs(counts["a"] - 6) <= 1
    assert Counter(d.task.environment for d in draws) == {"a": 60, "b": 20}


def test_a_cursor_of_other_tasks_weights_or_seed_is_refused() -> None:
    cursor = TaskSampler([environment("a", 5)], 0).start()
    for other in (
        TaskSampler([environment("a", 6)], 0),
        TaskSampler([environment("a", 5)], 1),
        TaskSampler([environment("a", 5), environment("b", 5)], 0),
    ):
        with pytest.raises(InputError, match="cursor"):
            other.draw(1, cursor)
    for damaged in ({}, {"taken": {"a": -1}, "tasks": "x"}, {"taken": [], "tasks": "x"}):
        with pytest.raises(InputError, match="cursor"):
            Cursor.from_json(damaged)


def test_ids_are_unique_over_environments() -> None:
    one = arithmetic_environment("one", ["difference"], held_out_pairs=5)
    two = arithmetic_environment("two", ["difference", "product"], held_out_pairs=5)
    with pytest.raises(InputError, match=r"difference:\d+-\d+.*environments\.one"):
        check_tasks([one, two])


def test_a_question_held_out_in_one_environment_is_not_trained_in_another() -> None:
    trained = environment("a", 3)
    leak = Task("other id", trained.tasks().train[1].messages, 1, "b")
    other = environment("b", 3)
    other.split = TaskSplit(other.split.train, (leak,))
    with pytest.raises(InputError, match=r"a1.*holds out as other id"):
        check_tasks([trained, other])


def test_weights_must_be_positive_and_known() -> None:
    for weights, named in (({"a": 0.0}, "positive"), ({"a": float("nan")}, "positive"), ({"z": 1.0}, "no such")):
        with pytest.raises(InputError, match=named):
            TaskSampler([environment("a", 3)], 0, weights)
    with pytest.raises(InputError, match="nothing to train"):
        TaskSampler([], 0)

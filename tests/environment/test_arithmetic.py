"""Generated arithmetic: what is asked, what is held out, how replies are graded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.environment.arithmetic import (
    FAMILIES,
    arithmetic_environment,
    constant_answer_baseline,
    regrade,
)
from posttrain.environment.build import build_environment
from posttrain.environment.protocol import Attempt, Environment
from posttrain.errors import InputError
from posttrain.settings.environments import ArithmeticSettings
from posttrain.trajectory import FinishReason, GradeStatus, Message, Task


def attempt(task: Task, completion: str) -> Attempt:
    messages = (*task.messages, Message("assistant", completion))
    return Attempt(task, completion, messages, FinishReason.STOP, 3)


def operands(task: Task) -> frozenset[tuple[int, int]]:
    """Operands as a multiset, computed from the question a model reads rather than from metadata."""
    numbers = [int(w) for w in task.messages[-1].content.replace("?", " ").split() if w.isdigit()]
    return frozenset((n, numbers.count(n)) for n in numbers)


@pytest.mark.parametrize("families", [*[(name,) for name in FAMILIES], ("sum2_1", "sum", "difference", "three_terms")])
@settings(max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_operands_held_out_are_never_trained(families: tuple[str, ...], seed: int) -> None:
    split = arithmetic_environment("a", families, held_out_pairs=15, held_out_seed=seed).tasks()
    held_out = {operands(t) for t in split.evaluation}
    assert len(held_out) >= 15
    assert not held_out & {operands(t) for t in split.train}
    assert all(t.gold == eval_expression(t) for t in (*split.train, *split.evaluation))


def eval_expression(task: Task) -> int:
    words = task.messages[-1].content.removeprefix("What is ").split("?")[0].split()
    value = int(words[0])
    for symbol, number in zip(words[1::2], words[2::2], strict=True):
        value = {"+": value + int(number), "-": value - int(number), "*": value * int(number)}[symbol]
    return value


def test_differences_under_twenty() -> None:
    split = arithmetic_environment("a", ["difference"], held_out_pairs=30).tasks()
    assert (len(split.train), len(split.evaluation)) == (141, 30)
    task = next(t for t in (*split.train, *split.evaluation) if t.task_id == "difference:17-9")
    assert task.messages == (Message("user", "What is 17 - 9? Reply with only the number."),)
    assert task.gold == 8


def test_both_orders_of_a_sum_are_on_the_same_side() -> None:
    split = arithmetic_environment("a", ["sum"], held_out_pairs=20, low=10, high=40).tasks()
    ids = {t.task_id for t in split.evaluation}
    mirrored = {"sum:" + "+".join(reversed(i.removeprefix("sum:").split("+"))) for i in ids}
    assert mirrored == ids


def test_the_split_depends_on_the_seed_only() -> None:
    def evaluation(seed: int, **options: int) -> list[str]:
        return [
            t.task_id
            for t in arithmetic_environment(
                "x", ["difference"], held_out_seed=seed, **{"held_out_pairs": 15, **options}
            )
            .tasks()
            .evaluation
        ]

    assert evaluation(3) == evaluation(3)
    assert evaluation(3) != evaluation(4)
    assert set(evaluation(3)) < set(evaluation(3, held_out_pairs=16))


@pytest.mark.parametrize(
    ("completion", "reward", "parsable", "ambiguous"),
    [
        ("17 - 9 = 8.", 1.0, 1.0, 0.0),
        ("8.0", 1.0, 1.0, 0.0),
        ("-8", 0.0, 1.0, 0.0),
        ("8.5", 0.0, 0.0, 0.0),
        ("eight", 0.0, 0.0, 0.0),
        ("7 or 8", 0.0, 0.0, 1.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_grading(completion: str, reward: float, parsable: float, ambiguous: float) -> None:
    environment = arithmetic_environment("a", ["difference"], held_out_pairs=1)
    task = Task("t", (Message("user", "What is 17 - 9?"),), 8, "a")
    (grade,) = environment.grade([attempt(task, completion)])
    assert grade.status is GradeStatus.GRADED
    assert grade.reward == reward
    assert grade.parts == {"correct": reward, "parsable": parsable, "ambiguous": ambiguous}
    assert environment.counts.graded == 1


def test_every_grading_on_the_same_text() -> None:
    task = Task("t", (Message("user", "?"),), 8, "a")
    record = regrade("17 - 9 = 8", task)
    assert (record.last_integer_correct, record.first_integer_correct, record.exact_correct) == (True, False, False)
    assert regrade("7 or 8", task).last_integer_correct is False


def test_votes_are_over_values_not_spellings() -> None:
    environment = arithmetic_environment("a", ["difference"], held_out_pairs=1)
    assert {environment.extract(t) for t in ("8", "8.0", "It is 8.", "+8")} == {"8"}
    assert environment.extract("none") is None


def test_constant_baseline_counts_the_most_frequent_gold() -> None:
    tasks = [Task(str(i), (Message("user", "?"),), gold, "a") for i, gold in enumerate([3, 5, 5, 7])]
    baseline = constant_answer_baseline(tasks)
    assert (baseline.answer, baseline.success, baseline.num_tasks) == (5, 0.5, 4)
    with pytest.raises(InputError):
        constant_answer_baseline([])


def test_settings_become_an_environment() -> None:
    section = ArithmeticSettings(task="mixture", mixture=("difference", "sum2_1"), system_prompt="Be brief.")
    environment = build_environment("sums", section)
    assert isinstance(environment, Environment)
    split = environment.tasks()
    assert {t.metadata["family"] for t in split.train} == {"difference", "sum2_1"}
    assert all(t.messages[0] == Message("system", "Be brief.") and t.environment == "sums" for t in split.train)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"families": ["division"]}, "division"),
        ({"families": []}, "task"),
        ({"held_out_pairs": 171}, "held_out_pairs"),
        ({"held_out_pairs": -1}, "held_out_pairs"),
        ({"low": 9, "high": 9}, "held_out_pairs"),
        ({"prompt": "What is it?"}, "{question}"),
        ({"grading": "middle_integer"}, "middle_integer"),
        ({"families": ["sum", "product"], "low": 3}, "mixture"),
        ({"families": ["sum", "sum"]}, "twice"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], named: str) -> None:
    arguments = {"families": ["difference"], "held_out_pairs": 15, **options}
    with pytest.raises(InputError, match=named):
        arithmetic_environment("a", **arguments)  # type: ignore[arg-type]

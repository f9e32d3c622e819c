"""Built-in verifiers on the answers that fool simple ones."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.environment.grading import Grader
from posttrain.environment.protocol import Attempt
from posttrain.environment.verifiers import MathGrader, exact_grader, last_number_grader, verifier
from posttrain.errors import InputError
from posttrain.trajectory import FinishReason, Grade, GradeStatus, Message, Task


def attempt(gold: Any, completion: str) -> Attempt:
    task = Task("t", (Message("user", "?"),), gold, "e")
    return Attempt(task, completion, task.messages, FinishReason.STOP, 1)


def judge(grader: Grader, gold: Any, completion: str) -> Grade:
    return grader.grade([attempt(gold, completion)])[0]


LONG_TAIL = "3*9=27\n#### 27\n" + "So that checks out nicely. " * 14

BOTH = [
    ("$42$", r"\boxed{42} then \boxed{41}", 0.0),
    ("$42$", r"\boxed{41} then \boxed{42}", 1.0),
    ("$-7$", r"\boxed{7}", 0.0),
    ("$-7$", r"\boxed{-7}", 1.0),
    ("1250", "#### $1,250", 1.0),
    ("27", LONG_TAIL, 1.0),
    ("640", "640.", 1.0),
    ("640", "+640", 1.0),
    ("640", "640.0", 1.0),
    ("640", "Answer: $640$", 1.0),
    ("640", r"\text{640}", 1.0),
    ("$2$", "1 or 2", 0.0),
]


@pytest.mark.parametrize(("gold", "completion", "reward"), BOTH)
def test_last_number(gold: str, completion: str, reward: float) -> None:
    grade = judge(last_number_grader(), gold, completion)
    assert (grade.status, grade.reward) == (GradeStatus.GRADED, reward)


def test_last_number_reads_worked_gold_answers_and_decimals() -> None:
    grader = last_number_grader()
    assert judge(grader, "She has 3 + 4 = 7.\n#### 7", "So 7").reward == 1.0
    assert judge(grader, 0.5, "0.50").reward == 1.0
    assert judge(grader, 5, "0.5").reward == 0.0
    assert judge(grader, "2", "1 or 2").parts["ambiguous"] == 1.0
    assert judge(grader, "seven", "7").status is GradeStatus.UNGRADABLE
    assert judge(grader, 1, "no idea").parts == {"correct": 0.0, "parsable": 0.0, "ambiguous": 0.0}
    assert {grader.extract(t) for t in ("8", "8.0", "= 8.")} == {"8"}


def test_exact_ignores_only_the_white_space_around() -> None:
    grader = exact_grader()
    assert judge(grader, "a b", " a b\n").reward == 1.0
    assert judge(grader, "a b", "a  b").reward == 0.0
    assert judge(grader, 8, "8").reward == 1.0


@pytest.fixture(scope="module")
def math_grader() -> Iterator[MathGrader]:
    pytest.importorskip("math_verify")
    grader = MathGrader(timeout_s=20.0)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("gold", "completion", "reward"),
    [
        *BOTH,
        (r"$\frac{1}{2^{99}}$", r"\boxed{\frac{1}{2^{98}}}", 0.0),
        (r"$\frac{1}{2^{99}}$", r"\boxed{\frac{1}{2^{99}}}", 1.0),
        (r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$", 0.0),
        (r"$1, 2, \ldots, n$", r"$1,2,\ldots,n$", 1.0),
        (r"$50\%$", r"\boxed{50}", 0.0),
        (r"$50\%$", r"\boxed{50\%}", 1.0),
        ("$(1,2)$", r"\boxed{[1,2]}", 0.0),
        (r"\frac12", r"\boxed{0.5}", 1.0),
        ("1/3", r"\boxed{0.3333333}", 1.0),
        ("1/3", r"\boxed{0.33}", 0.0),
        ("x+1", r"\boxed{1+x}", 1.0),
        ("x+1", r"\boxed{1-x}", 0.0),
        ("5", "no idea", 0.0),
    ],
)
def test_math(math_grader: MathGrader, gold: str, completion: str, reward: float) -> None:
    grade = judge(math_grader, gold, completion)
    assert (grade.status, grade.reward) == (GradeStatus.GRADED, reward), grade.reason


def test_math_grades_from_a_thread_as_from_the_main_one(math_grader: MathGrader) -> None:
    grades: list[Grade] = []
    thread = threading.Thread(target=lambda: grades.extend(math_grader.grade([attempt("1/2", r"\boxed{0.5}")])))
    thread.start()
    thread.join()
    assert [g.reward for g in grades] == [1.0]


def test_an_expression_that_never_ends_fails_alone() -> None:
    pytest.importorskip("math_verify")
    grader = MathGrader(timeout_s=2.0)
    good, endless = grader.grade([attempt("4", r"\boxed{4}"), attempt("4", r"\boxed{9^{9^{9^{9}}} + 1}")])
    grader.close()
    assert good.reward == 1.0
    assert (endless.status, endless.reward) == (GradeStatus.FAILED, None)
    assert "timeout" in endless.reason


def test_a_verifier_must_accept_the_gold_answers() -> None:
    tasks = [Task(f"t{i}", (Message("user", "?"),), gold, "e") for i, gold in enumerate([3, "4"])]
    assert verifier("s", "last_number", 1.0, tasks).counts.graded == 0
    words = [Task("w", (Message("user", "?"),), "seven", "e")]
    with pytest.raises(InputError, match=r"'seven' of w"):
        verifier("environments.e.verifier", "last_number", 1.0, words)
    with pytest.raises(InputError, match="is unknown"):
        verifier("environments.e.verifier", "magic", 1.0, words)

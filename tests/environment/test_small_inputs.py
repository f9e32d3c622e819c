"""Small inputs that are known to fool graders, on every grader that claims to read them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.environment.function import FunctionGrader, RewardFunction
from posttrain.environment.grading import GradedTasks, Grader, PureGrader, graded
from posttrain.environment.protocol import Attempt, TaskSplit
from posttrain.environment.reasoning_gym import EXTRACTIONS
from posttrain.environment.verifiers import MathGrader, last_number_grader
from posttrain.orchestration.sampling import grade
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
)

CHATTER = "So that checks out nicely. " * 14

NUMBERS = [
    # several boxes: the last one counts
    (42, r"\boxed{42} then \boxed{41}", 0.0),
    (42, r"\boxed{41} then \boxed{42}", 1.0),
    # the sign counts
    (-7, r"\boxed{7}", 0.0),
    (-7, r"\boxed{-7}", 1.0),
    (7, r"\boxed{-7}", 0.0),
    # a dollar sign and a comma
    (1250, "#### $1,250", 1.0),
    # far from the end
    (27, f"3*9=27\n#### 27\n{CHATTER}", 1.0),
    # spellings of one value
    (640, "640.", 1.0),
    (640, "+640", 1.0),
    (640, "640.0", 1.0),
    (640, "Answer: $640$", 1.0),
    (640, r"\text{640}", 1.0),
    # no clear answer
    (2, "1 or 2", 0.0),
    (2, "It is not 2.", 0.0),
    (2, "2 is wrong.", 0.0),
]


def attempt(gold: object, completion: str) -> Attempt:
    task = Task("t", (Message("user", "?"),), gold, "e")
    return Attempt(task, completion, task.messages, FinishReason.STOP, 1)


def rewards(grader: Grader | GradedTasks, pairs: Sequence[tuple[object, str]]) -> list[float | None]:
    return [g.reward for g in grader.grade([attempt(gold, text) for gold, text in pairs])]


@pytest.fixture(scope="module")
def math_grader() -> Iterator[MathGrader]:
    pytest.importorskip("math_verify")
    grader = MathGrader(timeout_s=120.0)
    yield grader
    grader.close()


@pytest.mark.parametrize("name", ["rows", "arithmetic", "math"])
def test_numbers_on_every_grader(name: str, request: pytest.FixtureRequest) -> None:
    graders = {
        "rows": last_number_grader,
        "arithmetic": lambda: arithmetic_environment("e", ["difference"], held_out_pairs=1),
        "math": lambda: request.getfixturevalue("math_grader"),
    }
    got = rewards(graders[name](), [(gold, text) for gold, text, _ in NUMBERS])
    assert got == [reward for _, _, reward in NUMBERS]


def test_per_cent_is_a_hundredth_and_never_both(math_grader: MathGrader) -> None:
    """The stated policy: 50 % is 0.5 and is not 50."""
    answers = [r"\boxed{50}", r"\boxed{0.5}", r"\boxed{50\%}", "50%", r"\boxed{\frac{1}{2}}"]
    assert rewards(math_grader, [(r"$50\%$", text) for text in answers]) == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_tiny_numbers_enumerations_and_intervals(math_grader: MathGrader) -> None:
    pairs = [
        (r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$"),
        (r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$"),
        ("$(1,2)$", r"\boxed{[1,2]}"),
        ("$(1,2)$", r"\boxed{(1,2)}"),
    ]
    assert rewards(math_grader, pairs) == [0.0, 0.0, 0.0, 1.0]


def test_what_is_marked_as_the_answer_counts(math_grader: MathGrader) -> None:
    pairs = [
        ("42", "<think>It is 42.</think><answer>43</answer>"),
        ("42", "<think>It is 43.</think><answer>42</answer>"),
        ("42", "<answer>41, 42, 43</answer>"),
        ("42", "42 came first\n#### 43"),
        ("42", r"\boxed{42.}"),
        ("1000", r"\boxed{+1,000}"),
        ("1/2", r"\boxed{\text{1/2}}"),
    ]
    assert rewards(math_grader, pairs) == [0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_a_calculation_is_no_number(math_grader: MathGrader) -> None:
    pairs = [
        ("8", r"\boxed{17 - 9}"),
        ("8", "The answer is 17 - 9."),
        ("8", r"\boxed{17 - 9 = 8}"),
        ("42", r"\boxed{84/2}"),
        ("0.5", r"\boxed{1/2}"),
        ("-7", r"\boxed{-7}"),
        ("x+1", r"\boxed{1+x}"),
    ]
    assert rewards(math_grader, pairs) == [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]


def test_units_must_agree_where_both_are_given(math_grader: MathGrader) -> None:
    answers = [r"\boxed{5 feet}", r"\boxed{5 meters}", r"\boxed{5}", r"\boxed{5 \text{ meter}}"]
    assert rewards(math_grader, [("5 meters", text) for text in answers]) == [0.0, 1.0, 1.0, 1.0]


def test_tags_over_several_lines_are_read() -> None:
    text = "<think>one\ntwo</think>\n<answer>\n12\n</answer>"
    assert EXTRACTIONS["answer_tag"](text) == "12"
    assert EXTRACTIONS["last_number"]("It is not 12") is None


WORDS = ("What?", "I", " think", "the total is 55", " done", "55")


class WordTurns:
    """As much of a tokenizer as grading needs: one word for each id."""

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(WORDS[i] for i in token_ids)

    def conversation(self, task: Task) -> tuple[Message, ...]:
        return task.messages


def test_what_a_tool_says_is_not_the_policys_answer() -> None:
    """The gold stands in the tool's output only; a grader that reads every token after the prompt would pay it."""

    def contains(one: Attempt) -> Grade:
        return graded(float(str(one.task.gold) in one.completion), {})

    task = Task("t", (Message("user", "What?"),), 55, "e")
    environment = GradedTasks("e", TaskSplit((task,)), PureGrader(contains, lambda text: text))
    trajectories = [_with_tool(task, [4], "a"), _with_tool(task, [5], "b")]
    texts = grade({"e": environment}, WordTurns(), trajectories)  # type: ignore[arg-type]
    assert texts == ["I think done", "I think55"]
    assert [t.grade.reward for t in trajectories if t.grade] == [0.0, 1.0]


def _with_tool(task: Task, end: list[int], name: str) -> Trajectory:
    def ids(values: list[int]) -> np.ndarray:
        return np.array(values, np.int32)

    trajectory = Trajectory(name, "g", task, SamplingParams(8))
    trajectory.append(Segment(Origin.PROMPT, ids([0])))
    trajectory.append(Segment(Origin.MODEL, ids([1, 2]), np.zeros(2, np.float32), 0))
    trajectory.append(Segment(Origin.ENVIRONMENT, ids([3])))
    trajectory.append(Segment(Origin.MODEL, ids(end), np.zeros(len(end), np.float32), 0))
    trajectory.finish_reason = FinishReason.STOP
    return trajectory


CODE_REWARD = """
import subprocess, sys


def prints_nothing(completions, **columns):
    return [float(_run(text) == (0, "")) for text in completions]


def _run(text):
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True)
    return done.returncode, done.stdout
"""


def test_a_solution_that_raises_is_not_one_that_prints_nothing(tmp_path: Path) -> None:
    """A reward that runs programs works in our processes, exit codes and output included."""
    (tmp_path / "code.py").write_text(CODE_REWARD)
    task = Task("t", (Message("user", "?"),), "", "e")
    grader = FunctionGrader("e", [RewardFunction(f"{tmp_path}/code.py:prints_nothing")], [task], timeout_s=120.0)
    try:
        got = rewards(grader, [("", "raise SystemExit(1)"), ("", "1/0"), ("", "x = 1"), ("", "print(1)")])
    finally:
        grader.close()
    assert got == [0.0, 0.0, 1.0, 0.0]


REFUSED = """
import socket


def judge(completions, **columns):
    if completions[0] == "":  # the trial call before the service is asked
        return [0.0 for _ in completions]
    socket.create_connection(("127.0.0.1", 1), timeout=5)
    return [1.0 for _ in completions]
"""


def test_a_judge_that_cannot_be_reached_gives_no_zeros(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(REFUSED)
    task = Task("t", (Message("user", "?"),), "", "e")
    grader = FunctionGrader("e", [RewardFunction(f"{tmp_path}/judge.py:judge")], [task], timeout_s=120.0)
    try:
        grades = grader.grade([attempt("", f"answer {n}") for n in range(20)])
    finally:
        grader.close()
    assert {g.status for g in grades} == {GradeStatus.FAILED}
    assert {g.reward for g in grades} == {None}
    assert all("ConnectionRefused" in g.reason for g in grades)
    assert (grader.counts.graded, grader.counts.failed) == (0, 20)

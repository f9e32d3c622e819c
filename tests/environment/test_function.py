"""Reward functions in real processes: what breaks is found, and costs nobody else a grade."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.environment.function import CompletionShape, FunctionGrader, RewardFunction, combine
from posttrain.environment.isolation import MAX_LOSSES_PER_BATCH, Result
from posttrain.environment.protocol import Attempt
from posttrain.errors import InputError
from posttrain.signals.registry import signal_for
from posttrain.trajectory import FinishReason, GradeStatus, Message, Task

REWARDS = Path(__file__).with_name("rewards_for_tests.py")
TASKS = [Task(f"t{i}", (Message("user", f"What is {i}?"),), 8, "e", {"level": i}) for i in range(3)]


def attempts(*completions: str) -> list[Attempt]:
    return [
        Attempt(TASKS[i % 3], text, (*TASKS[i % 3].messages, Message("assistant", text)), FinishReason.STOP, i)
        for i, text in enumerate(completions)
    ]


def build(
    *names: str,
    shape: CompletionShape = "text",
    timeout_s: float = 20.0,
    weights: tuple[float, ...] = (),
    workers: int = 1,
) -> FunctionGrader:
    functions = [
        RewardFunction(f"{REWARDS}:{n}", w) for n, w in zip(names, weights or (1.0,) * len(names), strict=True)
    ]
    return FunctionGrader("e", functions, TASKS, shape, timeout_s, workers)


@pytest.fixture
def obedient() -> Iterator[FunctionGrader]:
    """Does what the completion says; half a second to answer."""
    grader = build("on_request", timeout_s=0.5)
    yield grader
    grader.close()


def test_what_times_out_alone_fails_and_the_others_are_graded(obedient: FunctionGrader) -> None:
    grades = obedient.grade(attempts("a", "sleep", "b", "sleep holding the lock", "c"))
    assert [g.status for g in grades] == ["graded", "failed", "graded", "failed", "graded"]
    assert [g.reward for g in grades] == [1.0, None, 1.0, None, 1.0]
    assert "timeout" in grades[1].reason
    assert "0.5 s" in grades[1].reason
    counts = obedient.counts
    assert (counts.graded, counts.failed, counts.timeouts, counts.restarts) == (3, 2, 2, 3)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("exit", "exit code 7"),
        ("segfault", "SIGSEGV"),
        ("sysexit", "SystemExit"),
        ("raise", r"ConnectionRefusedError: sandbox is down"),
    ],
)
def test_what_breaks_the_process_or_raises_fails_alone(obedient: FunctionGrader, request_: str, reason: str) -> None:
    grades = obedient.grade(attempts("a", request_, "b"))
    assert [g.status for g in grades] == ["graded", "failed", "graded"]
    assert reason in grades[1].reason


def test_a_dead_service_fails_every_attempt_and_pays_none_a_zero(obedient: FunctionGrader) -> None:
    grades = obedient.grade(attempts(*["raise"] * 20))
    assert {g.status for g in grades} == {GradeStatus.FAILED}
    assert {g.reward for g in grades} == {None}
    assert obedient.counts.failed == 20


@pytest.mark.parametrize("value", ["nan", "inf", "none", "text", "huge"])
def test_no_number_is_ungradable_and_never_zero(obedient: FunctionGrader, value: str) -> None:
    good, bad = obedient.grade(attempts("true", value))
    assert (good.status, good.reward) == (GradeStatus.GRADED, 1.0)
    assert (bad.status, bad.reward) == (GradeStatus.UNGRADABLE, None)
    assert "on_request" in bad.reason or "no part applies" in bad.reason


def test_a_batch_that_hangs_throughout_is_given_up_in_bounded_time() -> None:
    grader = build("on_request", timeout_s=0.1)
    started = time.monotonic()
    grades = grader.grade(attempts(*["sleep"] * 40))
    grader.close()
    assert {g.status for g in grades} == {GradeStatus.FAILED}
    assert sum("timeout" in g.reason for g in grades) == MAX_LOSSES_PER_BATCH
    assert sum("not tried" in g.reason for g in grades) == 40 - MAX_LOSSES_PER_BATCH
    assert time.monotonic() - started < 30


def test_parts_that_do_not_apply_leave_the_sum() -> None:
    grader = build("on_request", "not_always", weights=(2.0, 10.0))
    both, first_only = grader.grade(attempts("a", "none"))
    grader.close()
    assert both.reward == 2.0 * 1.0 + 10.0 * 0.5
    assert both.parts == {"on_request": 1.0, "not_always": 0.5}
    assert first_only.status is GradeStatus.UNGRADABLE  # "none" makes both functions return None


def test_combination_of_parts() -> None:
    weights = {"a": 1.0, "b": 0.5}
    assert combine({"a": Result(1.0), "b": Result(None)}, weights).reward == 1.0
    assert combine({"a": Result(None), "b": Result(1)}, weights).reward == 0.5
    broken = combine({"a": Result(1.0), "b": Result(error="KeyError: x")}, weights)
    assert broken.status is GradeStatus.FAILED
    assert broken.parts == {"a": 1.0, "b": None}
    assert combine({"a": Result(1e308), "b": Result(1e308)}, {"a": 9.0, "b": 9.0}).status is GradeStatus.UNGRADABLE


def test_a_completion_scores_the_same_as_text_and_as_message_list() -> None:
    shapes: tuple[CompletionShape, CompletionShape] = ("text", "messages")
    rewards = []
    for shape in shapes:
        grader = build("same_for_both_shapes", shape=shape)
        rewards.append([g.reward for g in grader.grade(attempts("8", "9"))])
        grader.close()
    assert rewards[0] == rewards[1] == [1.0, 0.0]


def test_the_wrong_shape_is_refused_with_the_right_one_named() -> None:
    with pytest.raises(InputError, match=r"completions = 'messages'"):
        build("reads_messages")


def test_columns_prompts_and_facts_are_passed_by_name() -> None:
    grader = build("columns_seen")
    assert [g.reward for g in grader.grade(attempts("x", "y", "z"))] == [0.0, 101.0, 202.0]
    grader.close()


@pytest.mark.parametrize(("name", "reward"), [("numpy_scores", 0.5), ("awaited", 0.25)])
def test_arrays_and_coroutines_are_accepted(name: str, reward: float) -> None:
    grader = build(name)
    assert [g.reward for g in grader.grade(attempts("x", "y"))] == [reward, reward]
    grader.close()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("needs_token_ids", "'completion_ids' cannot be filled"),
        ("misspelt", "Did you mean 'level'"),
        ("positional", "passed by name"),
        ("no_completions", "'texts' .*|no parameter 'completions'"),
        ("one_number", "returned float, not a list of 2"),
        ("too_few", "returned 1 values for 2"),
        ("text_scores", "returned 'good'"),
        ("always_raises", "KeyError"),
        ("always_sleeps", "within 1 s"),
        ("missing", "has no missing"),
        ("not_callable", "not a function"),
    ],
)
def test_a_function_of_no_use_is_refused_before_the_run(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        build(name, timeout_s=1.0)
    assert refused.value.setting == "environments.e.reward"


@pytest.mark.parametrize("target", ["no_such_module_at_all:f", "no/such/file.py:f", "nothing", "module:", "module:a b"])
def test_an_import_path_that_leads_nowhere_is_refused(target: str) -> None:
    with pytest.raises(InputError, match=r"environments\.e\.reward"):
        FunctionGrader("e", [RewardFunction(target)], TASKS)


def test_several_functions_of_one_name_stay_apart(tmp_path: Path) -> None:
    for name, value in (("one.py", 1), ("two.py", 2)):
        (tmp_path / name).write_text(f"def f(completions):\n    return [{value} for _ in completions]\n")
    targets = [f"{tmp_path / name}:f" for name in ("one.py", "two.py")]
    grader = FunctionGrader("e", [RewardFunction(t) for t in targets], TASKS)
    (grade,) = grader.grade(attempts("x"))
    grader.close()
    assert grade.reward == 3.0
    assert grade.parts == {"one.f": 1.0, "two.f": 2.0}
    with pytest.raises(InputError, match="twice"):
        FunctionGrader("e", [RewardFunction(targets[0])] * 2, TASKS)


def test_functions_of_one_name_in_files_of_one_name_have_parts_that_signals_can_be_named_after(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("def f(completions):\n    return [1.0 for _ in completions]\n")
    grader = FunctionGrader("e", [RewardFunction(f"{tmp_path / d}/mine.py:f") for d in ("one", "two")], TASKS)
    (grade,) = grader.grade(attempts("x"))
    grader.close()
    assert grade.parts == {"mine.f-1": 1.0, "mine.f-2": 1.0}
    for part in grade.parts:
        assert signal_for(f"reward/part/{part}/mean").name == "reward/part/{part}/mean"


@pytest.mark.parametrize("value", [1.1e30, -1e308, 10**400, float("inf")])
def test_a_reward_that_would_overflow_is_ungradable(value: float) -> None:
    grade = combine({"a": Result(value)}, {"a": 1.0})
    assert (grade.status, grade.reward) == (GradeStatus.UNGRADABLE, None)
    assert combine({"a": Result(1e30)}, {"a": 1.0}).reward == 1e30
    assert combine({"a": Result(1e30)}, {"a": 2.0}).status is GradeStatus.UNGRADABLE


def test_workers_share_a_batch_in_order() -> None:
    grader = build("length", workers=3)
    assert [g.reward for g in grader.grade(attempts("a", "bb", "ccc", "dddd", "eeeee"))] == [1, 2, 3, 4, 5]
    assert grader.grade([]) == []
    grader.close()


def test_grading_works_from_any_thread(obedient: FunctionGrader) -> None:
    rewards: list[float | None] = []
    threads = [
        threading.Thread(target=lambda: rewards.extend(g.reward for g in obedient.grade(attempts("a", "b"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 8


def test_close_ends_the_process_and_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "spawns.py"
    script.write_text(
        "import os, subprocess\n"
        "def f(completions):\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        f"    open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "    return [1.0 for _ in completions]\n"
    )
    grader = FunctionGrader("e", [RewardFunction(f"{script}:f")], TASKS)
    assert grader.grade(attempts("x"))[0].reward == 1.0
    processes = [int(pid) for pid in pids.read_text().split()]
    grader.close()
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_alive(pid) for pid in processes)
    grader.close()
    assert grader.grade(attempts("x"))[0].reward == 1.0, "a closed grader starts again when asked"
    grader.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_grading_process_killed_from_outside_is_replaced(obedient: FunctionGrader) -> None:
    process = obedient._runs["on_request"].process._process  # type: ignore[attr-defined]
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert [g.reward for g in obedient.grade(attempts("a", "b"))] == [1.0, 1.0]
    assert obedient.counts.restarts == 1


@pytest.mark.parametrize("busy", [False, True])
def test_no_grading_process_outlives_a_killed_run(tmp_path: Path, busy: bool) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "stuck.py").write_text(
        "import os\n"
        "def f(completions):\n"
        f"    open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "    return [float(sum(range(10**12)) if c == 'hang' else 1) for c in completions]\n"
    )
    code = (
        "import time\n"
        "from posttrain.environment.worker import CallProcess\n"
        f"process = CallProcess({str(tmp_path / 'stuck.py') + ':f'!r})\n"
        f"process.call({{'completions': [{('hang' if busy else 'x')!r}]}}, 0.5)\n"
        "time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)
    pid = int(pid_file.read_text())
    run.kill()
    run.wait()
    deadline = time.monotonic() + 8
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)

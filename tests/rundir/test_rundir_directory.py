"""A run directory is made whole or not at all, and says what it is."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from posttrain.errors import InputError
from posttrain.rundir.directory import RunDirectory, default_run_path
from posttrain.rundir.files import DamagedFileError
from posttrain.rundir.info import (
    ExecutionPlan,
    MachineInfo,
    PolicyIdentity,
    RunInfo,
    machine_info,
    package_versions,
)
from posttrain.settings.resolve import Choice

INFO = RunInfo(
    name="demo",
    seed=7,
    created=1_767_225_600.0,
    settings={"policy": {"learning_rate": 1e-5, "gradient_clip": 1.0}, "environments": {"sums": {"kind": "x"}}},
    plan=ExecutionPlan("cpu", 2, "bfloat16", "float32", 4096),
    choices=(Choice("run.device", "cpu", "no accelerator was found"),),
    policy_identity=(PolicyIdentity("bf16 copy", True, "the cast copy", True, True, "cast once per version"),),
    versions={"numpy": "2.0"},
    facts={"parameters": 134_515_008},
)
MACHINE = MachineInfo("host", "linux", "3.11", "cpu", 2, 24 << 30, ("gpu",))


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_create_makes_parents_and_run_json_reads_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a" / "b", INFO)
    assert RunDirectory.open(tmp_path / "a" / "b").info() == INFO
    assert tree(run.path) == ["checkpoints", "evaluation", "run.json", "trajectories"]
    assert os.listdir(tmp_path / "a") == ["b"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert RunDirectory.create(tmp_path / "run", INFO).info() == INFO


@pytest.mark.parametrize("kind", ["run", "other", "file", "dangling"])
def test_an_existing_path_is_refused_untouched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "run":
        RunDirectory.create(path, INFO)
    elif kind == "other":
        path.mkdir()
        (path / "thesis.tex").write_text("x")
    elif kind == "file":
        path.write_text("x")
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="exists already") as caught:
        RunDirectory.create(path, dataclasses.replace(INFO, name="other"))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert ("posttrain resume" in caught.value.fix) == (kind == "run")
    assert tree(tmp_path) == before


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "a" / "run", INFO)
    assert tree(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_directory_without_permission_is_refused(tmp_path: Path, mode: int) -> None:
    """In a child that gives up root, which may write anywhere."""
    tmp_path.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(mode)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            RunDirectory.create(locked / "run", INFO)
        except InputError as error:
            status = 0 if "cannot be written" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    locked.chmod(0o755)
    assert tree(tmp_path) == ["locked"]


@pytest.mark.parametrize("parent_exists", [True, False])
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent_exists: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posttrain.rundir.directory.write_run_info", full)
    path = tmp_path / "run" if parent_exists else tmp_path / "a" / "b" / "run"
    with pytest.raises(InputError, match="No space left on device"):
        RunDirectory.create(path, INFO)
    assert tree(tmp_path) == []


def test_a_failure_in_an_empty_directory_leaves_it_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posttrain.rundir.directory.write_run_info", full)
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="No space left on device"):
        RunDirectory.create(tmp_path / "run", INFO)
    assert tree(tmp_path) == ["run"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"holds no run\.json"):
        RunDirectory.open(tmp_path)


def test_attempts_count_from_one_and_keep_their_end(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    first = run.begin_attempt(MACHINE)
    assert (first.attempt, first.outcome, first.resumed_from_step) == (1, "running", None)
    run.end_attempt(first, "interrupted", "Ctrl-C")
    second = run.begin_attempt(MACHINE, resumed_from_step=8)
    attempts = run.info().attempts
    assert [(a.attempt, a.outcome, a.resumed_from_step) for a in attempts] == [
        (1, "interrupted", None),
        (2, "running", 8),
    ]
    assert attempts[1] == second
    assert attempts[0].machine == MACHINE
    assert run.info().settings == INFO.settings


def test_run_json_has_no_nan(tmp_path: Path) -> None:
    run = RunDirectory.create(
        tmp_path / "run", dataclasses.replace(INFO, facts={"x": float("nan"), "y": [float("inf")]})
    )
    assert json.loads(run.info_path.read_text(), parse_constant=lambda _: pytest.fail("NaN"))["facts"] == {
        "x": None,
        "y": [None],
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not readable JSON"),
        ("[]", "JSON object"),
        ("{}", "schema version None"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "does not describe a run"),
        ('{"schema_version": 1, "plan": 3}', "does not describe a run"),
        ('{"schema_version": 1, "plan": {"device": "cpu"}}', "does not describe a run"),
    ],
)
def test_a_damaged_run_json_is_named(tmp_path: Path, content: str, problem: str) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    run.info_path.write_text(content)
    with pytest.raises(DamagedFileError, match=rf"run\.json: .*{problem}"):
        run.info()


def test_unknown_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    data = json.loads(run.info_path.read_text())
    data["mood"] = "good"
    data["plan"]["ranks"] = 1
    run.info_path.write_text(json.dumps(data))
    assert run.info() == INFO


def test_files_are_found_by_step_in_order(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    for step in (2, 1, 1_000_000):
        run.write_step(step, [])
    run.write_evaluation(3, "sums/greedy", [])
    run.write_evaluation(0, "sums", [])
    (run.path / "trajectories" / ".step_000009.parquet.tmp-1").write_text("half")
    (run.path / "trajectories" / "notes.txt").write_text("x")
    assert list(run.trajectory_files()) == [1, 2, 1_000_000]
    assert run.trajectory_files()[2].name == "step_000002.parquet"
    assert list(run.evaluation_files()) == [(0, "sums"), (3, "sums-greedy")]


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    for name in ("../../x", "/etc/passwd", "..", "a\0b"):
        assert run.evaluation_path(1, name).parent == run.path / "evaluation"
        assert default_run_path(name, 0.0, tmp_path).parent == tmp_path


def test_default_paths_do_not_collide(tmp_path: Path) -> None:
    first = default_run_path("my run", 0.0, tmp_path)
    first.mkdir()
    assert first.name.startswith("my-run-")
    assert default_run_path("my run", 0.0, tmp_path).name == first.name + "-2"


def test_the_evaluation_summary_is_strict_json(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    assert run.evaluation_summary() is None
    run.write_evaluation_summary({"gain": 0.4, "ratio": float("nan")})
    assert run.evaluation_summary() == {"gain": 0.4, "ratio": None}


def test_only_one_living_process_works_on_a_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", INFO)
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from posttrain.rundir.directory import RunDirectory
        with RunDirectory.open(Path({str(run.path)!r})).lock():
            print("held", flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process is working on it"), run.lock():
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with run.lock():
        pass
    with run.lock():
        pass


def test_machine_and_versions_are_read_without_importing_anything_heavy() -> None:
    program = (
        "import sys\n"
        "from posttrain.rundir.info import machine_info, package_versions\n"
        "import posttrain.rundir.reading, posttrain.rundir.trackers, posttrain.signals.registry\n"
        "machine_info(); package_versions()\n"
        "print(sorted({'torch', 'transformers', 'tensorboard', 'wandb', 'mlflow'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    machine = machine_info(["one"])
    assert machine.cores >= 1
    assert machine.memory > 1 << 28
    assert machine.devices == ("one",)
    assert package_versions(["numpy", "no-such-package-here"]).keys() == {"numpy"}

"""Running an ablation: one process after the other, each an ordinary run, gone on with where it was left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from posttrain.errors import InputError
from posttrain.orchestration.ablation.outcome import State, check_same_settings, read_outcome, state_of
from posttrain.orchestration.ablation.plan import AblationPlan, Arm, Job
from posttrain.orchestration.ablation.report import RunRecord, document
from posttrain.orchestration.interrupt import Interrupt
from posttrain.orchestration.progress import duration
from posttrain.rundir.files import write_json

FILE = "ablation.json"
OK, STOPPED, FAILED, INTERRUPTED = 0, 1, 3, 130
_STDERR = 2
_LOOK_S = 0.2
_GRACE_S = 20.0
_TAIL = 1 << 16


@dataclass(slots=True)
class Ablation:
    """The runs of a plan under ``folder``. ``records`` are in the order of the plan's jobs."""

    plan: AblationPlan
    folder: Path
    console: Console
    records: list[RunRecord] = field(default_factory=list[RunRecord])
    _clock: _Clock = field(default_factory=lambda: _Clock())

    def open(self) -> None:
        """Look at what is there already. Raises InputError if it is not this ablation's, or an arm would not start."""
        if self.folder.exists() and not (self.folder / FILE).is_file() and _is_used(self.folder):
            problem = f"is there and holds no {FILE}, so it is no ablation to go on with"
            raise InputError("--out", str(self.folder), problem, "Give another --out, or an empty directory.")
        jobs = self.plan.jobs(self.folder)
        for job in jobs:
            check_same_settings(job)
        self.records = [self._read(job) for job in jobs]
        waiting = {r.job.arm.name for r in self.records if r.state is not State.FINISHED}
        for arm in self.plan.arms:
            if arm.name in waiting:
                _check_starts(arm)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            problem = f"cannot be written ({error.strerror or error})"
            raise InputError("--out", str(self.folder), problem, "Give a writable directory.") from error

    def run(self) -> int:
        """Run what is not finished. Returns the exit code; 130 if it was interrupted, after the run in hand saved."""
        steps = sum(r.job.arm.settings.run.steps for r in self.records if r.state is not State.FINISHED)
        self._clock = _Clock(steps)
        finished = sum(r.state is State.FINISHED for r in self.records)
        if finished:
            self.console.print(f"{finished} of {len(self.records)} runs are finished already")
        with Interrupt(_say_stopping) as interrupt:
            for index, record in enumerate(self.records):
                if record.state is State.FINISHED:
                    continue
                code = self._run_job(index, record.job, interrupt)
                self.records[index] = self._ended(record.job, code)
                self._write()
                self._say_ended(index)
                left = any(r.state in (State.PENDING, State.UNFINISHED) for r in self.records)
                if left and (interrupt.requested or code == INTERRUPTED):
                    return INTERRUPTED
        if any(r.state is State.FAILED for r in self.records):
            return FAILED
        return STOPPED if any(r.state is State.STOPPED for r in self.records) else OK

    def _run_job(self, index: int, job: Job, interrupt: Interrupt) -> int:
        label = f"run {index + 1} of {len(self.records)}: {job.arm.name}, seed {job.seed}"
        resumes = state_of(job.path) is State.UNFINISHED
        self.console.print(f"{label}{', resumed' if resumes else ''}, {self._clock.left()} left", markup=False)
        job.path.parent.mkdir(parents=True, exist_ok=True)
        with job.log_path.open("ab") as log, self._clock.running(job), self.console.status(label) as status:
            # In a process group of its own: Ctrl-C reaches it once, from here, and not also from the terminal.
            process = subprocess.Popen(
                _command(self.plan.config, job, resumes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            try:
                told = False
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_LOOK_S)
                    if interrupt.requested and not told:
                        process.send_signal(signal.SIGINT)
                        told = True
                    self._clock.look()
                    status.update(f"{label}: {self._clock.within()}")
            except BaseException:
                _end(process)
                raise
            return process.returncode

    def _ended(self, job: Job, code: int) -> RunRecord:
        if code == OK:
            return RunRecord(job, State.FINISHED, read_outcome(job))
        if code == STOPPED:
            return RunRecord(job, State.STOPPED, detail=_last_line(job.log_path, "!"))
        if code == INTERRUPTED:
            return self._read(job)
        cause = f"killed by signal {-code}" if code < 0 else _last_line(job.log_path, "error:")
        return RunRecord(job, State.FAILED, detail=f"{cause} (exit code {code}; see {job.log_path})")

    def _read(self, job: Job) -> RunRecord:
        state = state_of(job.path)
        return RunRecord(job, state, read_outcome(job) if state is State.FINISHED else None)

    def _say_ended(self, index: int) -> None:
        record = self.records[index]
        if record.outcome is not None:
            text = f"held-out reward {record.outcome.reward:.3f}, success {record.outcome.success:.3f}"
        else:
            text = f"{record.state} {record.detail}".strip()
        self.console.print(f"  {text}, {duration(self._clock.last_s)}", markup=False, soft_wrap=True)

    def _write(self) -> None:
        write_json(self.folder / FILE, document(self.plan, self.records, self.folder))


class _Clock:
    """Time left, by the steps this process has seen done and those that are to come."""

    def __init__(self, steps: int = 0) -> None:
        self._started = time.monotonic()
        self._steps, self._done, self._now = steps, 0, 0
        self._job: Job | None = None
        self._began, self._first = self._started, 0
        self.last_s = 0.0

    @contextlib.contextmanager
    def running(self, job: Job) -> Generator[None]:
        """Around the work on one run."""
        self._job, self._began = job, time.monotonic()
        self._first = self._now = steps_done(job.path)
        self._steps -= self._first
        try:
            yield
        finally:
            self.last_s = time.monotonic() - self._began
            self._done += job.arm.settings.run.steps - self._first
            self._job, self._now, self._first = None, 0, 0

    def look(self) -> None:
        """Read how far the run in hand is."""
        if self._job is not None:
            self._now = max(self._now, steps_done(self._job.path))

    def left(self) -> str:
        """Time left for all runs, or ``?`` before the first step."""
        done = self._done + self._now - self._first
        if done <= 0:
            return duration(None)
        return duration((time.monotonic() - self._started) / done * (self._steps - done))

    def within(self) -> str:
        """How far the run in hand is, and the time left for all."""
        total = self._job.arm.settings.run.steps if self._job is not None else 0
        return f"step {self._now}/{total}, {self.left()} left"


def steps_done(path: Path) -> int:
    """Step of the last whole line of a run's metrics; 0 without one."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    try:
        return int(json.loads(lines[-1])["step"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 0


def _command(config: Path, job: Job, resumes: bool) -> list[str]:
    program = [sys.executable, "-m", "posttrain.cli.main"]
    if resumes:
        return [*program, "resume", str(job.path)]
    overrides = [o for o in job.arm.overrides if not o.startswith("--run.seed=")]
    return [*program, "train", str(config), "--run", str(job.path), *overrides, f"--run.seed={job.seed}"]


def _check_starts(arm: Arm) -> None:
    """Look at model, tasks and memory as the run will, without loading weights. Raises InputError naming the arm."""
    from posttrain.orchestration.watch import check_names
    from posttrain.orchestration.workbench import check_held_out, prepare
    from posttrain.rundir.trackers import check_trackers

    check_trackers(arm.settings.rundir.trackers)
    check_names(arm.settings.faultmap)
    try:
        preparation = prepare(arm.settings)
    except InputError as error:
        raise InputError(error.setting, error.value, f"({arm.name}) {error.problem}", error.fix) from error
    try:
        check_held_out(preparation)
    finally:
        for environment in preparation.environments:
            environment.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The second Ctrl-C, and whatever else ends this process: let the run go at once, and by force if it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _say_stopping(name: str) -> None:
    text = f"{name}: stopping after the work in hand, then saving. Again: stop at once\n"
    with contextlib.suppress(OSError):
        os.write(_STDERR, text.encode())


def _last_line(path: Path, start: str) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith(start)), lines[-1] if lines else "")


def _is_used(folder: Path) -> bool:
    return not folder.is_dir() or any(folder.iterdir())

"""One real tiny run of the training loop, with or without a planted fault."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.injection.planted import tasks
from tests.injection.planted.base import base_policy
from tests.injection.planted.faults import FAULTS, Fault

STEPS = 60


@dataclass(frozen=True, slots=True)
class Case:
    """``fault`` is empty for a clean run. ``onset`` is the first step at which the fault acts (0: never)."""

    fault: str
    magnitude: float
    onset: int
    task: str
    reward: str
    algorithm: str
    seed: int
    steps: int = STEPS
    rate: float = 1.5e-4

    @property
    def name(self) -> str:
        """Folder of the run."""
        head = f"{self.fault}-{self.magnitude:g}-at{self.onset}" if self.fault else "clean"
        return f"{head}-{self.task}-{self.reward.partition('_')[0]}-{self.algorithm}-{self.rate:g}-s{self.seed}"


def fault_of(case: Case) -> Fault | None:
    """The fault of a case."""
    return next((f for f in FAULTS if f.name == case.fault), None)


def settings_of(case: Case, folder: Path, base: Path) -> dict[str, Any]:
    """Settings as a TOML file would give them."""
    train, held_out = tasks.write_rows(folder, case.task)
    settings: dict[str, Any] = {
        "run": {"steps": case.steps, "threads": 1, "device": "cpu", "seed": case.seed},
        "model": {"path": str(base), "compute_dtype": "float32"},
        "environments": {
            "toy": {
                "kind": "function",
                "reward": f"{Path(tasks.__file__).resolve()}:{case.reward}",
                "reward_kind": "verifiable",
                "path": str(train),
                "evaluation_path": str(held_out),
                "id_column": "id",
                "gold_column": "answer",
            }
        },
        "rollout": {"prompts_per_step": 10, "group_size": 16, "max_new_tokens": 6},
        "policy": {"algorithm": case.algorithm, "learning_rate": case.rate, "warmup_steps": 0},
        "evaluation": {"every": 10, "samples": 2, "samples_during": 2, "k": [1], "at_end": False},
        "checkpoint": {"every": 0},
        "faultmap": {"stop_on": "off"},
        "rundir": {"trackers": [], "trajectories_every": 10},
    }
    fault = fault_of(case)
    if fault is not None and fault.settings is not None:
        fault.settings(case.magnitude, settings)
    return settings


def run_case(case: Case, out: Path) -> None:
    """Train in this process; the run directory is ``out/NAME/run``, the truth ``out/NAME/truth.json``."""
    from posttrain.orchestration.run import train
    from posttrain.settings import Settings

    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings.model_validate(settings_of(case, folder, base_policy(case.task, case.seed, out / "base")))
    with planted(case), contextlib.redirect_stdout(io.StringIO()):
        code = train(settings, folder / "run")
    fault = fault_of(case)
    truth = asdict(case) | {
        "exit_code": code,
        "causes": list(fault.causes) if fault else [],
        "cause_layer": fault.cause_layer if fault else 0,
        "symptom_layers": list(fault.symptom_layers) if fault else [],
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


@contextlib.contextmanager
def planted(case: Case) -> Generator[None]:
    """Wrap the parts of the loop that the fault acts through, from its onset on."""
    fault = fault_of(case)
    if fault is None:
        yield
        return
    import posttrain.orchestration.loop as loop
    from posttrain.policy.masters import OptimizerSettings
    from posttrain.rollout.native.replica import Replica

    now = {"step": 0, "training": False}
    real_step, real_grade, real_sample = loop.Loop.train_step, loop.grade, loop.sample
    real_load, real_logits, real_rate = Replica.load, Replica.logits, OptimizerSettings.rate_at

    def active() -> bool:
        return now["step"] >= case.onset

    def train_step(self: Any) -> None:
        now["step"] = self.step + 1
        real_step(self)

    def grade(environments: Any, turns: Any, trajectories: Any) -> Any:
        texts = real_grade(environments, turns, trajectories)
        if fault.grade is not None and active():
            fault.grade(case.magnitude, trajectories, now["step"])
        return texts

    def sample(engine: Any, turns: Any, members: Any, attempt: int, *rest: Any) -> Any:
        now["training"] = True
        submit = engine.submit
        change = fault.request
        if change is not None and active():
            engine.submit = lambda requests: submit([change(case.magnitude, r) for r in requests])
        try:
            return real_sample(engine, turns, members, attempt, *rest)
        finally:
            engine.submit = submit
            now["training"] = False

    def load(self: Any, weights: Any) -> int:
        if fault.load is not None and active() and weights.version > 0:
            return fault.load(case.magnitude, self, weights, now["step"], lambda w: real_load(self, w))
        return real_load(self, weights)

    def logits(self: Any, hidden: Any) -> Any:
        raw = real_logits(self, hidden)
        if fault.logits is not None and active() and now["training"]:
            return fault.logits(case.magnitude, raw.float())
        return raw

    def rate_at(self: Any, update: int) -> float:
        rate = real_rate(self, update)
        return fault.rate(case.magnitude, rate) if fault.rate is not None and active() else rate

    with (
        mock.patch.object(loop.Loop, "train_step", train_step),
        mock.patch.object(loop, "grade", grade),
        mock.patch.object(loop, "sample", sample),
        mock.patch.object(Replica, "load", load),
        mock.patch.object(Replica, "logits", logits),
        mock.patch.object(OptimizerSettings, "rate_at", rate_at),
    ):
        yield

"""Running a chain of stages, each a run directory of its own under a common parent."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from posttrain.errors import InputError
from posttrain.orchestration.fixed_data.run import resume_fixed, train_fixed
from posttrain.orchestration.outputs import LastingConsole, check_writable
from posttrain.orchestration.run import resume, train
from posttrain.orchestration.stages.scores import Scores, has_tasks, score_model
from posttrain.rundir.files import read_json_object, write_json
from posttrain.settings import FixedSettings, Settings
from posttrain.settings.stages import REFERENCE, Stage, StagePlan, plan_from_mapping

FILE = "stages.json"
OK = 0


def train_stages(plan: StagePlan, path: Path) -> int:
    """Run a chain from the beginning into a new directory. Returns the exit code of the stage that ended it."""
    check_writable(path)
    path.mkdir(parents=True, exist_ok=True)
    return _Chain(path, plan).run()


def resume_stages(path: Path) -> int:
    """Go on with a chain where it stopped. Raises InputError if a finished stage's model is not what it was."""
    document = read_json_object(path / FILE)
    chain = _Chain(
        path,
        plan_from_mapping(document["plan"]),
        dict(document["weights"]),
        {
            name: {model: Scores.from_json(s) for model, s in found.items()}
            for name, found in cast("dict[str, dict[str, Any]]", document["scores"]).items()
        },
    )
    return chain.run()


@dataclass(slots=True)
class _Chain:
    """``weights`` is SHA-256 of each finished stage's model; ``scores`` by the stage of the tasks, then by model."""

    path: Path
    plan: StagePlan
    weights: dict[str, str] = field(default_factory=dict[str, str])
    scores: dict[str, dict[str, Scores]] = field(default_factory=dict[str, dict[str, Scores]])
    console: LastingConsole = field(default_factory=lambda: LastingConsole(highlight=False))

    def run(self) -> int:
        self._write()
        self._check_lineage()
        for number, stage in enumerate(self.plan.stages, 1):
            self.console.print(f"stage {number} of {len(self.plan.stages)}: {stage.name}, from {stage.started_from}")
            code = self._run_stage(stage)
            if code != OK:
                self.console.print(f"the chain stopped in stage {stage.name}; go on with: posttrain resume {self.path}")
                return code
            if stage.name not in self.weights:
                self.weights[stage.name] = model_digest(self._folder(stage) / "model")
                self._write()
            self._score(number)
        self._print_table()
        return OK

    def _folder(self, stage: Stage) -> Path:
        return self.path / f"{self.plan.stages.index(stage) + 1:02d}-{stage.name}"

    def _models(self) -> dict[str, str]:
        return {stage.name: str(self._folder(stage) / "model") for stage in self.plan.stages}

    def _settings(self, stage: Stage) -> Settings | FixedSettings:
        return stage.resolved(self._models())

    def _run_stage(self, stage: Stage) -> int:
        settings, folder = self._settings(stage), self._folder(stage)
        if isinstance(settings, FixedSettings):
            return resume_fixed(folder) if (folder / "run.json").is_file() else train_fixed(settings, folder)
        return resume(folder) if (folder / "run.json").is_file() else train(settings, folder)

    def _score(self, number: int) -> None:
        """The model of a stage, and the one it began from, on the tasks of every stage up to it."""
        stage = self.plan.stages[number - 1]
        if not has_tasks(self._settings(stage)):
            return
        for of_tasks in self.plan.stages[:number]:
            settings = self._settings(of_tasks)
            if not has_tasks(settings):
                continue
            found = self.scores.setdefault(of_tasks.name, {})
            for model in (stage.started_from, f"{REFERENCE}{stage.name}"):
                if model not in found:
                    name = model.removeprefix(REFERENCE)
                    path = self._models()[name] if model.startswith(REFERENCE) else model
                    start = model == of_tasks.started_from
                    scores = score_model(settings, self._folder(of_tasks), path, start)
                    if scores is None:
                        break
                    found[model] = scores
                    self._write()

    def _check_lineage(self) -> None:
        for stage in self.plan.stages:
            known = self.weights.get(stage.name)
            if known is not None and model_digest(self._folder(stage) / "model") != known:
                raise InputError(
                    "run",
                    str(self._folder(stage)),
                    "its model is not the one that later stages began from",
                    "Put it back, or start a new chain.",
                )

    def _write(self) -> None:
        write_json(
            self.path / FILE,
            {
                "plan": self.plan.to_mapping(),
                "written": time.time(),
                "lineage": [
                    {
                        "stage": stage.name,
                        "folder": self._folder(stage).name,
                        "started_from": stage.started_from,
                        "started_from_sha256": self.weights.get(stage.started_from.removeprefix(REFERENCE)),
                        "sha256": self.weights.get(stage.name),
                    }
                    for stage in self.plan.stages
                ],
                "weights": self.weights,
                "scores": {n: {m: s.to_json() for m, s in found.items()} for n, found in self.scores.items()},
                "table": self.table(),
            },
        )

    def table(self) -> list[dict[str, Any]]:
        """One entry for each stage and each stage's tasks: mean after it, and the paired change since its start."""
        rows: list[dict[str, Any]] = []
        for stage in self.plan.stages:
            for tasks, found in self.scores.items():
                after = found.get(f"{REFERENCE}{stage.name}")
                before = found.get(stage.started_from)
                if after is None or before is None:
                    continue
                change, error = after.change_from(before)
                rows.append(
                    {
                        "stage": stage.name,
                        "tasks": tasks,
                        "quantity": after.quantity,
                        "mean": after.mean,
                        "change": change,
                        "standard_error": None if math.isnan(error) else error,
                    }
                )
        return rows

    def _print_table(self) -> None:
        entries: Mapping[tuple[str, str], dict[str, Any]] = {(r["stage"], r["tasks"]): r for r in self.table()}
        names = [name for name, found in self.scores.items() if found]
        shown = Table(box=None, pad_edge=False)
        shown.add_column("after stage", no_wrap=True)
        for name in names:
            quantity = next(iter(self.scores[name].values())).quantity
            shown.add_column(f"{name} ({quantity}{', lower is better' if quantity == 'token_nll' else ''})")
        for stage in self.plan.stages:
            cells = [_cell(entries.get((stage.name, name))) for name in names]
            if any(cells):
                shown.add_row(stage.name, *cells)
        self.console.print("held-out tasks of each stage: value, and change since the stage began")
        self.console.print(shown)
        self.console.print(f"lineage and scores: {self.path / FILE}", soft_wrap=True, markup=False)


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    error = "" if entry["standard_error"] is None else f" ± {entry['standard_error']:.3f}"
    return f"{entry['mean']:.3f} ({entry['change']:+.3f}{error})"


def model_digest(folder: Path) -> str:
    """SHA-256 over the weight files of a model folder. Raises InputError if there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError("run", str(folder), "holds no weights", "Finish the stage first.")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()

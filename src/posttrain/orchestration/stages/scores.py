"""One model on the held-out tasks of one stage, task by task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.orchestration.fixed_data.batch import FixedBatch
from posttrain.orchestration.fixed_data.held_out import mean_and_error
from posttrain.orchestration.fixed_data.references import read_references
from posttrain.orchestration.fixed_data.workbench import build_fixed, prepare_fixed
from posttrain.orchestration.held_out import evaluate_policy, held_out_tasks
from posttrain.orchestration.workbench import build_sampling, prepare
from posttrain.settings import FixedSettings, Settings
from posttrain.settings.fixed import chosen_part
from posttrain.settings.parts.supervised import RewardModelling


@dataclass(frozen=True, slots=True)
class Scores:
    """``quantity`` is reward, accuracy or token_nll (the lower the better); ``values`` by task, in order."""

    quantity: str
    values: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean over the tasks."""
        return mean_and_error(np.array(list(self.values.values())))[0]

    def change_from(self, before: Scores) -> tuple[float, float]:
        """Mean paired difference over the tasks both have, and its standard error."""
        shared = [key for key in self.values if key in before.values]
        return mean_and_error(np.array([self.values[key] - before.values[key] for key in shared]))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"quantity": self.quantity, "values": dict(self.values)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Scores:
        """Read back what :meth:`to_json` wrote."""
        return Scores(str(data["quantity"]), {str(k): float(v) for k, v in data["values"].items()})


def has_tasks(settings: Settings | FixedSettings) -> bool:
    """Whether a policy can be scored on a stage's held-out tasks; those of a reward model are for reward models."""
    return isinstance(settings, Settings) or not isinstance(chosen_part(settings.policy)[1], RewardModelling)


def score_model(settings: Settings | FixedSettings, folder: Path, model: str, is_start: bool) -> Scores | None:
    """Score the model at ``model`` on the held-out tasks of the stage in ``folder``; ``None`` where it has none.

    ``is_start``: it is the model the stage began from.
    """
    plain = settings.model.model_copy(update={"path": model, "lora": None})
    if isinstance(settings, Settings):
        return _sampled(settings.model_copy(update={"model": plain}))
    return _fixed(settings.model_copy(update={"model": plain}), folder, is_start)


def _sampled(settings: Settings) -> Scores | None:
    """Mean reward of ``evaluation.samples_during`` attempts at each held-out task."""
    bench = build_sampling(prepare(settings, sampling_only=True))
    try:
        if not held_out_tasks(bench):
            return None
        results = evaluate_policy(bench, 0, settings.evaluation.samples_during, 0, None)
    finally:
        bench.close()
    values = {f"{name}/{task.task_id}": task.mean_reward for name, found in results.items() for task in found.judged}
    return Scores("reward", values)


def _fixed(settings: FixedSettings, folder: Path, is_start: bool) -> Scores | None:
    """What the stage's own evaluation judges by, against the stage's own reference."""
    bench = build_fixed(prepare_fixed(settings))
    examples = bench.data.held_out[: settings.evaluation.max_rows]
    if not examples:
        return None
    references = read_references(folder) if bench.method.reference else None
    batch = FixedBatch.of(examples, bench.method.answers, None if references is None else references.held_out)
    scores = batch.reference if is_start and references is not None else bench.score(batch)
    name, outcomes = bench.method.outcomes(batch, scores)
    values = {str(i): float(value) for i, value in enumerate(outcomes) if not math.isnan(value)}
    return Scores(name, values)

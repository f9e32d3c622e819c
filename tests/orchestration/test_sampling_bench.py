"""``posttrain eval`` loads what sampling needs and nothing of training, and finds the same."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import small_settings

from posttrain.errors import InputError
from posttrain.model.load import inspect_model
from posttrain.orchestration import workbench
from posttrain.orchestration.held_out import evaluate_policy, summaries
from posttrain.orchestration.run import evaluate
from posttrain.policy.trainer import Trainer
from posttrain.settings import Settings, settings_from_mapping
from posttrain.settings.facts import MachineFacts


def settings_of(folder: Path, path: str = "tiny:llama", dtype: str = "float32", **sections: Any) -> Settings:
    model = {"path": path, "compute_dtype": dtype}
    return settings_from_mapping(small_settings(folder, model=model, **sections))


def by_way_of_the_trainer(settings: Settings) -> dict[str, Any]:
    bench = workbench.build(workbench.prepare(settings))
    try:
        bench.engine.load_weights(bench.trainer.export())
        results = summaries(bench, evaluate_policy(bench, 0, settings.evaluation.samples, 0, None))
    finally:
        bench.close()
    return {name: json.loads(json.dumps(summary.to_json())) for name, summary in results.items()}


@pytest.mark.parametrize(("path", "dtype"), [("tiny:llama", "float32"), ("tiny:qwen3", "bfloat16")])
def test_results_are_those_of_a_trainers_weights(
    path: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, path, dtype, policy={"algorithm": "grpo", "anchor": {"weight": 0.1}})
    expected = by_way_of_the_trainer(settings)
    assert expected["toy"]["samples"] == 6

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("evaluation builds a trainer")

    monkeypatch.setattr(Trainer, "__init__", refuse)
    monkeypatch.setattr("posttrain.orchestration.workbench.Reference", refuse)
    out = tmp_path / "out.json"
    assert evaluate(settings, out) == 0
    assert json.loads(out.read_text()) == expected


def modules() -> list[torch.nn.Module]:
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]


def test_one_copy_of_the_weights_stays(tmp_path: Path) -> None:
    before = {id(m) for m in modules()}
    bench = workbench.build_sampling(workbench.prepare(settings_of(tmp_path), sampling_only=True))
    made = [m for m in modules() if id(m) not in before and isinstance(m, torch.nn.Embedding)]
    assert [id(m) for m in made] == [id(bench.engine.replica.model.get_input_embeddings())]
    bench.close()


def test_a_machine_that_cannot_train_a_model_can_evaluate_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32: training holds twenty bytes a parameter, sampling four, and eight while it loads."""
    settings = settings_of(tmp_path)
    parameters = inspect_model("tiny:llama").parameters

    def has(memory: int) -> None:
        monkeypatch.setattr(workbench, "probe_machine", lambda: MachineFacts(2, memory, cpu_bfloat16=True))

    has(18 * parameters)
    with pytest.raises(InputError, match="training it takes"):
        workbench.prepare(settings)
    assert evaluate(settings, None) == 0
    has(7 * parameters)
    with pytest.raises(InputError, match="sampling from it takes") as caught:
        workbench.prepare(settings, sampling_only=True)
    assert "lora" not in str(caught.value)

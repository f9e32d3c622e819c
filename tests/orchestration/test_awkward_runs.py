"""Whole runs that start well and meet something awkward: they end, and say what happened."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from policies import write_toml
from processes import Death, command_line
from small_runs import lineage_problems, small_settings

from posttrain.rundir.reading import LoadedRun, load_run

TWO_STEPS: dict[str, Any] = {"run": {"steps": 2, "threads": 1, "device": "cpu"}}


def ends_well(folder: Path, settings: dict[str, Any]) -> tuple[LoadedRun, str]:
    run = folder / "run"
    ended = command_line(["train", write_toml(folder / "run.toml", settings), "--run", run], folder / "log")
    assert ended.code == 0, ended.err + ended.out[-1000:]
    assert lineage_problems(run) == []
    return load_run(run), " ".join(ended.out.split())


def with_reward(folder: Path, source: str, **sections: Any) -> dict[str, Any]:
    file = folder / "mine.py"
    file.write_text(source)
    settings = small_settings(folder, **TWO_STEPS, **sections)
    settings["environments"]["toy"]["reward"] = f"{file}:reward"
    return settings


def values(run: LoadedRun) -> list[dict[str, float]]:
    return [dict(row.values) for row in run.metrics.rows if row.phase == "train"]


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_an_environment_can_be_left_out_of_the_anchor_of_the_others(place: str, tmp_path: Path) -> None:
    anchor = {"weight": 0.1, "place": place, "estimator": "k1" if place == "reward" else "k3"}
    settings = small_settings(
        tmp_path, **TWO_STEPS, policy={"algorithm": "grpo", "learning_rate": 2e-3, "anchor": anchor}
    )
    settings["environments"]["toy"]["anchor"] = {"weight": 0.0}
    run, _ = ends_well(tmp_path, settings)
    assert all(step["policy/grad_norm"] > 0 for step in values(run))
    assert run.trajectories(1)[0].trajectory.columns.reference_logprob is None


STOPS_GRADING = """
def reward(completions, task_id, **columns):
    import pathlib
    log = pathlib.Path(__file__).with_name("seen.txt")
    log.open("a").write("".join(f"{t}\\n" for t in task_id if t[0] in "ef"))
    broken = len(log.read_text().split()) > 9 + 2
    return [None if broken else len(set(c)) / 9 for c in completions]
"""


def test_a_grader_that_has_stopped_grading_when_training_ends_costs_the_comparison_alone(tmp_path: Path) -> None:
    run, out = ends_well(tmp_path, with_reward(tmp_path, STOPS_GRADING))
    assert "3 of 3 tasks could not be graded" in out
    assert "no gain can be told" in out
    assert run.evaluation_summary is not None
    entry = run.evaluation_summary["environments"]["toy"]
    assert "gain" not in entry
    assert entry["before"]["pass_at"]
    assert entry["after"]["tasks_without_grade"] == 3
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    last = [row for row in run.metrics.rows if row.phase == "evaluation"][-1].values
    assert last["evaluation/toy/ungradable_share"] == 1.0
    assert not [name for name in last if "pass@" in name or "reward" in name]


def test_a_damaged_first_evaluation_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = write_toml(tmp_path / "run.toml", small_settings(tmp_path, checkpoint={"every": 1}))
    killed = command_line(
        ["train", config, "--run", run], tmp_path / "log", Death("posttrain.orchestration.loop:sample", 3)
    )
    assert killed.code == -9
    (run / "evaluation" / "step_000000_toy.parquet").write_bytes(b"PAR1 and nothing more")
    ended = command_line(["resume", run], tmp_path / "log")
    assert ended.code == 0, ended.err
    assert "left out of the comparison" in ended.out
    summary = json.loads((run / "evaluation" / "summary.json").read_text())
    assert set(summary["environments"]["toy"]) >= {"after", "cost_curve"}
    assert "before" not in summary["environments"]["toy"]


HANGS_ONCE = """
import pathlib, time
def reward(completions, task_id, **columns):
    first = pathlib.Path(__file__).with_name("hung")
    if len(completions) == 1 and not first.exists() and task_id[0][0] in "abcd":
        first.touch()
        time.sleep(60)
    if len(completions) == 16 and not first.exists():
        raise RuntimeError("one by one, please")
    return [len(set(c)) / 9 for c in completions]
"""


def test_grader_events_are_those_of_the_step_and_memory_is_in_bytes(tmp_path: Path) -> None:
    settings = with_reward(tmp_path, HANGS_ONCE)
    settings["environments"]["toy"]["timeout_s"] = 0.5
    run, _ = ends_well(tmp_path, settings)
    first, second = values(run)
    assert (first["reward/grader_timeouts"], first["reward/grader_restarts"], first["reward/failed"]) == (1, 1, 1)
    assert first["reward/graded"] == 15
    assert (second["reward/grader_timeouts"], second["reward/grader_restarts"]) == (0, 0)
    limit = [s.kv_bytes_limit for s in run.engine.samples if s.kv_bytes_limit]
    assert all(step["rollout/kv_peak"] >= 1024 for step in values(run))
    assert all(step["rollout/kv_peak"] <= bound for step in values(run) for bound in limit)


def test_a_tracker_that_is_not_installed_is_found_out_before_anything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed here")
    config = write_toml(tmp_path / "run.toml", small_settings(tmp_path, rundir={"trackers": ["tensorboard", "wandb"]}))
    ended = command_line(["train", config, "--run", tmp_path / "run"], tmp_path / "log")
    assert ended.code == 2
    assert "rundir.trackers" in ended.err
    assert "posttrain[trackers]" in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head", "model.embed_tokens"])
def test_an_adapter_that_sampler_and_trainer_would_not_share_is_refused(target: str, tmp_path: Path) -> None:
    model = {"path": "tiny:llama", "compute_dtype": "float32", "lora": {"rank": 2, "targets": ["q_proj", target]}}
    config = write_toml(tmp_path / "run.toml", small_settings(tmp_path, model=model))
    ended = command_line(["train", config, "--run", tmp_path / "run"], tmp_path / "log")
    assert ended.code == 2
    assert ended.err.startswith(f"error: model.lora.targets = '{target}'")
    assert "q_proj" in ended.err
    assert not (tmp_path / "run").exists()

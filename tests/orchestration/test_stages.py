"""A chain of runs: each begins from an earlier model, and the table says what each gained and lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fixed_runs import fixed_settings, write_jsonl
from policies import write_toml
from toy_task import toy_settings

from posttrain.cli.main import run_command
from posttrain.orchestration.fixed_data.loop import FixedLoop
from posttrain.orchestration.loop import Loop
from posttrain.rundir.directory import RunDirectory

RUN = {"threads": 1, "device": "cpu"}
STAGES = ("sft", "rm", "rlhf", "rlvr")


def chain(folder: Path, steps: int = 20) -> Path:
    """Supervised, reward model, a policy on its reward, a policy on a verifiable one: files side by side."""
    run = {"run": RUN | {"steps": steps}}
    prompts = write_jsonl(folder / "prompts.jsonl", [{"prompt": f"{c}{d}"} for c in "abcd" for d in range(10)])
    small: dict[str, Any] = {
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 5},
        "evaluation": {"samples": 2, "samples_during": 4, "k": [1], "max_tasks": 10},
    }
    configs = {
        "sft": fixed_settings(folder / "sft", "sft", **run),
        "rm": fixed_settings(folder / "rm", "reward_model", **run),
        "rlhf": toy_settings(folder, run=RUN | {"steps": 2}, **small),
        "rlvr": toy_settings(folder, run=RUN | {"steps": 2}, **small),
    }
    configs["rlhf"]["environments"] = {
        "liked": {"kind": "reward_model", "reward_model": "nowhere", "path": str(prompts)}
    }
    replaced = {
        "sft": {},
        "rm": {"model.path": "stage:sft"},
        "rlhf": {"model.path": "stage:sft", "environments.liked.reward_model": "stage:rm"},
        "rlvr": {"model.path": "stage:rlhf"},
    }
    lines = ['name = "recipe"']
    for name in STAGES:
        path = write_toml(folder / f"{name}.toml", configs[name])
        values = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in replaced[name].items())
        lines += ["[[stage]]", f'name = "{name}"', f"config = {json.dumps(str(path))}", f"settings = {{ {values} }}"]
    file = folder / "stages.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "stages.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    assert run_command(["train", str(chain(folder)), "--run", str(folder / "run")]) == 0
    return folder


def test_each_stage_begins_from_the_model_it_names_and_is_scored_on_every_earlier_stages_tasks(finished: Path) -> None:
    found = document(finished / "run")
    lineage = {entry["stage"]: entry for entry in found["lineage"]}
    assert [lineage[name]["folder"] for name in STAGES] == [f"{i:02d}-{n}" for i, n in enumerate(STAGES, 1)]
    for stage, parent in (("rm", "sft"), ("rlhf", "sft"), ("rlvr", "rlhf")):
        assert lineage[stage]["started_from_sha256"] == lineage[parent]["sha256"]
        settings = RunDirectory.open(finished / "run" / lineage[stage]["folder"]).info().settings
        assert settings["model"]["path"] == str(finished / "run" / lineage[parent]["folder"] / "model")
    rlhf = RunDirectory.open(finished / "run" / "03-rlhf").info().settings
    assert rlhf["environments"]["liked"]["reward_model"] == str(finished / "run" / "02-rm" / "model")

    cells = {(row["stage"], row["tasks"]): row for row in found["table"]}
    expected = {("sft", "sft"), ("rlhf", "sft"), ("rlhf", "rlhf"), ("rlvr", "sft"), ("rlvr", "rlhf"), ("rlvr", "rlvr")}
    assert set(cells) == expected, "a reward model is no policy: it has no row and no column"
    gain = cells["sft", "sft"]
    assert gain["change"] < -3 * gain["standard_error"] < 0
    assert {row["quantity"] for row in cells.values()} == {"token_nll", "reward"}
    before = found["scores"]["sft"]["stage:rlhf"]["values"]
    after = found["scores"]["sft"]["stage:rlvr"]["values"]
    change = sum(after[key] - before[key] for key in after) / len(after)
    assert cells["rlvr", "sft"]["change"] == pytest.approx(change)


def test_the_score_of_a_stage_on_its_own_tasks_is_what_its_run_measured(finished: Path) -> None:
    summary = json.loads((finished / "run" / "01-sft" / "evaluation" / "summary.json").read_text())
    (row,) = [r for r in document(finished / "run")["table"] if r["stage"] == r["tasks"] == "sft"]
    assert row["mean"] == pytest.approx(summary["held_out"]["after"]["mean"], abs=1e-5)
    assert row["change"] == pytest.approx(summary["held_out"]["gain"]["mean"], abs=1e-5)


@pytest.mark.parametrize("loop", [FixedLoop, Loop], ids=["in a fixed stage", "in a sampled stage"])
def test_an_interrupted_chain_goes_on_to_the_same_table(
    finished: Path, tmp_path: Path, loop: type, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = loop.train_step

    def interrupted(self: Any) -> None:
        step(self)
        if self.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "train_step", interrupted)
    assert run_command(["train", str(chain(tmp_path)), "--run", str(tmp_path / "run")]) == 130
    assert "go on with: posttrain resume" in capsys.readouterr().out
    monkeypatch.setattr(loop, "train_step", step)
    assert run_command(["resume", str(tmp_path / "run")]) == 0
    ours, theirs = document(tmp_path / "run"), document(finished / "run")
    assert ours["weights"] == theirs["weights"]
    assert ours["table"] == theirs["table"]
    assert "after stage" in capsys.readouterr().out


def test_a_model_that_was_exchanged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = chain(tmp_path, steps=2)
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 0
    weights = tmp_path / "run" / "01-sft" / "model" / "model.safetensors"
    weights.write_bytes((tmp_path / "run" / "04-rlvr" / "model" / "model.safetensors").read_bytes())
    assert run_command(["resume", str(tmp_path / "run")]) == 2
    assert "its model is not the one that later stages began from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"stage:sft"', '"stage:rlvr"', "does not come before it"),
        ('"stage:sft"', '"stage:stf"', "Earlier: sft"),
        ('name = "rm"', 'name = "sft"', "two stages have this name"),
        ("sft.toml", "nowhere.toml", "cannot be read"),
        ('"model.path" =', '"model.pth" =', "Did you mean model.path"),
        ("[[stage]]", "[[stage]]\nmodel = 1", "Extra inputs are not permitted"),
    ],
)
def test_a_chain_that_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    file = chain(tmp_path)
    file.write_text(file.read_text().replace(old, new, 1))
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_settings_belong_to_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", str(chain(tmp_path)), "--run", str(tmp_path / "run"), "--policy.learning_rate", "1"]
    assert run_command(command) == 2
    assert "has no settings of its own" in capsys.readouterr().err

"""Distillation end to end on a task a tiny model learns from scratch: a teacher by reward, then students by it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policies import write_toml
from processes import Ended, command_line
from small_runs import small_config
from toy_task import toy_settings

from posttrain.rundir.reading import LoadedRun, load_run


def run(folder: Path, **sections: Any) -> tuple[Ended, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    config = write_toml(folder / "run.toml", toy_settings(folder, evaluation={"samples": 4, "k": [1]}, **sections))
    path = folder / "run"
    return command_line(["train", config, "--run", path], folder / "log"), path


def trained(folder: Path, **sections: Any) -> LoadedRun:
    ended, path = run(folder, **sections)
    assert ended.code == 0, ended.err + ended.out[-1000:]
    return load_run(path)


def course(loaded: LoadedRun, name: str) -> np.ndarray:
    return np.array([row.values[name] for row in loaded.metrics.rows if row.phase == "train"])


def held_out(loaded: LoadedRun) -> tuple[float, float]:
    """Mean held-out reward before and after."""
    values = [r.values["evaluation/toy/reward_mean"] for r in loaded.metrics.rows if r.phase == "evaluation"]
    return values[0], values[-1]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that earns more than 0.9 on held-out tasks."""
    folder = tmp_path_factory.mktemp("teacher")
    loaded = trained(folder)
    assert held_out(loaded)[1] > 0.9
    return folder / "run" / "model"


@pytest.fixture(scope="module")
def shuffled(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same teacher with the rows of its tokens permuted: as sure as before, of other tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("shuffled") / "model"
    shutil.copytree(teacher, folder)
    model: Any = AutoModelForCausalLM.from_pretrained(teacher)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows.copy_(rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))])
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("algorithm", "steps", "policy"),
    [
        ("on_policy_distillation", 150, {}),
        ("gkd", 90, {}),
        ("gkd", 90, {"distillation": {"kind": "top_k", "top_k": 8, "beta": 1.0}}),
    ],
)
def test_the_divergence_falls_and_the_students_reward_rises(
    algorithm: str, steps: int, policy: dict[str, Any], teacher: Path, tmp_path: Path
) -> None:
    student = trained(
        tmp_path,
        run={"steps": steps},
        policy={"algorithm": algorithm, **policy},
        teacher={"path": str(teacher)},
        checkpoint={"every": 0},
    )
    before, after = held_out(student)
    assert before < 0.05
    assert after > 0.6
    gap = course(student, "distillation/gap")
    last = [stored.trajectory.columns for stored in student.trajectories(steps)]
    written = np.concatenate([c.teacher_logprob[c.loss_mask] for c in last])
    sampled = np.concatenate(
        [s.trajectory.sampler_logprobs[s.trajectory.model_mask] for s in student.trajectories(steps)]
    )
    assert (sampled - written).mean() == pytest.approx(gap[-1], abs=1e-4)
    assert gap[:5].mean() > 4.0
    assert gap[-5:].mean() < 0.25 * gap[:5].mean()
    overlap = course(student, "distillation/top_token_overlap")
    assert overlap[-5:].mean() > overlap[0] + 0.2
    assert course(student, "distillation/unlikely_share")[-5:].mean() < 0.2
    if algorithm == "gkd":
        divergence = course(student, "distillation/divergence")
        assert divergence[-5:].mean() < 0.25 * divergence[:5].mean()


def test_a_shuffled_teacher_is_refused_and_acknowledged_teaches_nothing(
    shuffled: Path, teacher: Path, tmp_path: Path
) -> None:
    """Against a student that can already do it: the teacher is worse, and following it unlearns the task."""
    sections: dict[str, Any] = {"run": {"steps": 60}, "teacher": {"path": str(shuffled)}}
    policy = {"algorithm": "gkd"}
    good = {"path": str(teacher), "compute_dtype": "float32"}
    ended, path = run(tmp_path / "refused", **sections, policy=policy, model=good)
    assert ended.code == 2
    assert "worse than the student" in ended.err
    assert "weaker_teacher" in ended.err
    assert not path.exists()
    policy["acknowledge"] = ["weaker_teacher"]  # type: ignore[assignment]
    ended, path = run(tmp_path / "stopped", **sections, policy=policy, model=good)
    assert ended.code == 1
    assert "have destroyed the policy" in ended.out
    watch = {"stop_on": "off"}
    unlearnt = trained(tmp_path / "unlearnt", **sections, policy=policy, model=good, faultmap=watch)
    assert held_out(unlearnt)[0] > 0.9
    assert held_out(unlearnt)[1] < 0.3
    fresh = trained(tmp_path / "fresh", **sections, policy=policy, faultmap=watch)
    assert held_out(fresh)[1] < 0.1
    assert course(fresh, "reward/mean").max() < 0.15


def test_added_to_a_reward_it_speeds_the_reward_up(teacher: Path, tmp_path: Path) -> None:
    """40 steps: too few for the reward alone."""
    both = {
        "advantage": {"baseline": "group_mean"},
        "distillation": {"kind": "full_vocabulary", "weight": 0.3, "reward_weight": 1.0},
    }
    alone = trained(tmp_path / "alone", run={"steps": 40}, policy={"algorithm": "reinforce_loo"})
    helped = trained(
        tmp_path / "helped",
        run={"steps": 40},
        policy={"algorithm": "gkd", **both},
        teacher={"path": str(teacher)},
    )
    assert held_out(helped)[1] > held_out(alone)[1] + 0.2
    assert course(helped, "policy/advantage_abs_max").max() > 0


def test_a_policy_teaches_itself_by_what_only_the_teacher_reads(teacher: Path, tmp_path: Path) -> None:
    """The teacher reads the letter and the digit, as the model was trained to; the student only the letter."""
    train, held = tmp_path / "letters.jsonl", tmp_path / "held_letters.jsonl"
    for path, letters in ((train, "abcd"), (held, "ef")):
        rows = [f'{{"id": "{c}", "prompt": "{c}", "digit": "7"}}\n' for c in letters]
        path.write_text("".join(rows))
    loaded = trained(
        tmp_path,
        run={"steps": 12},
        model={"path": str(teacher), "compute_dtype": "float32"},
        policy={"algorithm": "gkd", "distillation": {"beta": 0.0}, "learning_rate": 1e-3},
        teacher={"path": "self", "prompt": "{prompt}{digit}"},
        environments={
            "toy": toy_settings(tmp_path)["environments"]["toy"] | {"path": str(train), "evaluation_path": str(held)}
        },
        rollout={"prompts_per_step": 4},
    )
    before, after = held_out(loaded)
    assert before < 0.5
    assert after > before + 0.3


def test_a_run_with_a_teacher_resumes_to_the_same_weights(teacher: Path, tmp_path: Path) -> None:
    from processes import Death
    from small_runs import fingerprint, lineage_problems

    sections: dict[str, Any] = {
        "policy": {"algorithm": "on_policy_distillation", "learning_rate": 2e-3},
        "teacher": {"path": str(teacher), "compare_samples": 0},
    }
    for name, death in (("whole", None), ("killed", Death("posttrain.orchestration.loop:Loop.train_step", call=4))):
        folder = tmp_path / name
        config = small_config(folder, **sections)
        ended = command_line(["train", config, "--run", folder / "run"], folder / "log", death)
        if death is not None:
            assert ended.code < 0
            ended = command_line(["resume", folder / "run"], folder / "log2")
        assert ended.code == 0, ended.err + ended.out[-1000:]
        assert lineage_problems(folder / "run") == []
    assert fingerprint(tmp_path / "killed" / "run") == fingerprint(tmp_path / "whole" / "run")

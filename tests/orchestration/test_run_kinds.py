"""Whole runs of every kind of policy and objective, each in its own process, and what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import write_toml
from processes import command_line
from small_runs import lineage_problems, small_config, small_settings
from toy_task import toy_settings

from posttrain.model.load import load_policy
from posttrain.rundir.info import RunInfo
from posttrain.rundir.reading import LoadedRun, load_run
from posttrain.trajectory import FinishReason, GradeStatus, Trajectory

TWO_STEPS: dict[str, Any] = {"run": {"steps": 2, "threads": 1, "device": "cpu"}}


def train(folder: Path, **sections: Any) -> LoadedRun:
    run = folder / "run"
    ended = command_line(["train", small_config(folder, **sections), "--run", run], folder / "log")
    assert ended.code == 0, ended.err + ended.out[-1000:]
    assert lineage_problems(run) == []
    loaded = load_run(run)
    assert loaded.problems == []
    return loaded


def steps(run: LoadedRun) -> list[dict[str, float]]:
    return [dict(row.values) for row in run.metrics.rows if row.phase == "train"]


def plain_logprobs(folder: Path, trajectory: Trajectory) -> np.ndarray:
    """Log-probs of the sampled tokens by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))
    with torch.no_grad():
        scores = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return scores.numpy()[trajectory.model_mask[1:]]


def stored_anchor_kl(trajectories: Sequence[Trajectory]) -> float:
    """k3 over the trained tokens, from what the run wrote of them."""
    found: list[np.ndarray] = []
    for trajectory in trajectories:
        columns = trajectory.columns
        assert columns.reference_logprob is not None
        assert columns.trainer_logprob is not None
        assert columns.loss_mask is not None
        x = columns.trainer_logprob.astype(np.float64) - columns.reference_logprob
        found.append(x[columns.loss_mask])
    x = np.concatenate(found)
    return float(np.mean(np.exp(-x) - 1 + x))


LORA = {"rank": 4, "alpha": 16.0}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"kind": "qwen3"},
    "gemma3": {"kind": "gemma3"},
    "qwen3_moe": {"kind": "qwen3_moe"},
    "lora": {"model": {"path": "tiny:llama", "compute_dtype": "float32", "lora": LORA}},
    "lora_moe": {"model": {"path": "tiny:qwen3_moe", "compute_dtype": "float32", "lora": LORA}},
    "bfloat16": {"model": {"path": "tiny:qwen3", "compute_dtype": "bfloat16"}},
    "checkpointing": {"model": {"path": "tiny:llama", "compute_dtype": "float32", "gradient_checkpointing": True}},
    "two_updates": {"policy": {"algorithm": "grpo", "learning_rate": 2e-3, "updates_per_batch": 2}},
    "anchor_in_loss": {
        "policy": {"algorithm": "grpo", "learning_rate": 2e-3, "anchor": {"place": "loss", "weight": 0.1}}
    },
    "anchor_in_reward": {
        "policy": {
            "algorithm": "reinforce_loo",
            "learning_rate": 2e-3,
            "anchor": {"place": "reward", "estimator": "k1", "weight": 0.1},
        }
    },
    "lora_anchored": {
        "model": {"path": "tiny:llama", "compute_dtype": "float32", "lora": LORA},
        "policy": {"algorithm": "grpo", "learning_rate": 2e-3, "anchor": {"place": "loss", "weight": 0.1}},
    },
    "small_micro_batches": {
        "policy": {"algorithm": "dr_grpo", "learning_rate": 2e-3, "micro_batch_tokens": 16},
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_running": 3},
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_it_trains_and_the_exported_model_is_the_policy_that_was_evaluated(name: str, tmp_path: Path) -> None:
    sections = TWO_STEPS | KINDS[name]
    run = train(tmp_path, **sections)
    values = steps(run)
    assert len(values) == 2
    exact = name != "bfloat16"
    for step in values:
        assert np.isfinite([v for v in step.values() if v is not None]).all()
        assert step["policy/grad_norm"] > 0
        assert step["logprobs/mismatch_max"] < (1e-4 if exact and "lora" not in name else 0.3)
    assert run.metrics.rows[-1].policy_version == (4 if name == "two_updates" else 2)
    settings = small_settings(tmp_path, **sections)
    start = load_policy(settings["model"]["path"]).model.state_dict()
    final = load_policy(str(tmp_path / "run" / "model")).model.state_dict()
    assert start.keys() == final.keys()
    assert max(float((final[n].float() - start[n].float()).abs().max()) for n in start) > 1e-4
    stored = run.evaluation(2, "toy")
    assert stored
    for entry in stored[:3]:
        trajectory = entry.trajectory
        ours = trajectory.sampler_logprobs[trajectory.model_mask]
        theirs = plain_logprobs(tmp_path / "run" / "model", trajectory)
        np.testing.assert_allclose(ours, theirs, atol=1e-4 if exact else 0.1)
    assert (tmp_path / "run" / "adapter").exists() == name.startswith("lora")
    info = run.info
    assert isinstance(info, RunInfo)
    if "anchor" in name:
        stored = [s.trajectory for s in run.trajectories(2)]
        assert values[1]["policy/anchor_kl"] == pytest.approx(stored_anchor_kl(stored), rel=1e-3)
        assert values[1]["policy/anchor_kl"] > 1e-5


def test_dynamic_sampling_refills_up_to_its_cap_and_books_every_group(tmp_path: Path) -> None:
    filters = {"rule": "mixed_success", "max_refills": 2}
    policy = {"algorithm": "dapo", "learning_rate": 2e-3, "group_filter": filters}
    run = train(tmp_path, policy=policy, **TWO_STEPS)
    for number, step in enumerate(steps(run), 1):
        assert step["rollout/groups"] == step["policy/filtered_groups"] + _trained_groups(run, number)
        assert 0 <= step["policy/refills"] <= 2
        assert step["policy/refills"] == 2 or _trained_groups(run, number) == 4
    assert sum(step["policy/filtered_groups"] for step in steps(run)) > 0
    assert sum(step["policy/refills"] for step in steps(run)) > 0
    for stored in run.trajectories(1):
        assert bool(stored.group_discard_reason) == (stored.trajectory.columns.loss_mask is None)


def _trained_groups(run: LoadedRun, step: int) -> int:
    return len({s.trajectory.group_id for s in run.trajectories(step) if not s.group_discard_reason})


def test_what_has_no_grade_is_counted_and_is_in_no_baseline(tmp_path: Path) -> None:
    policy = {"algorithm": "dr_grpo", "learning_rate": 2e-3}
    run = train(
        tmp_path,
        reward="share_of_digits_or_nothing",
        policy=policy,
        run={"steps": 4, "threads": 1, "device": "cpu"},
        rollout={"prompts_per_step": 10, "group_size": 4},
        faultmap={"stop_on": "off"},
    )
    seen: set[str] = set()
    for number, step in enumerate(steps(run), 1):
        stored = run.trajectories(number)
        missing = [s for s in stored if not s.trajectory.is_gradable]
        assert step["reward/ungradable"] == len(missing) > 0
        assert step["reward/graded"] == len(stored) - len(missing)
        graded = [s.trajectory.reward for s in stored if s.trajectory.is_gradable]
        assert step["reward/mean"] == pytest.approx(np.mean(graded), abs=1e-6)
        for entry in missing:
            assert entry.trajectory.grade is not None
            assert entry.trajectory.grade.status is GradeStatus.UNGRADABLE
            assert entry.trajectory.columns.advantage is None
        groups: dict[str, list[Trajectory]] = {}
        for entry in stored:
            if entry.group_discard_reason:
                seen.add(entry.group_discard_reason)
                assert entry.trajectory.columns.advantage is None
            elif entry.trajectory.is_gradable:
                groups.setdefault(entry.trajectory.group_id, []).append(entry.trajectory)
        for members in groups.values():
            mean = np.mean([t.reward for t in members])
            for member in members:
                assert member.columns.advantage is not None
                np.testing.assert_allclose(member.columns.advantage[member.model_mask], member.reward - mean, atol=1e-6)
                assert not member.columns.advantage[~member.model_mask].any()
    assert "0 of 4 members could be graded, 2 are needed" in seen


def test_a_grader_that_raises_fails_those_attempts_alone(tmp_path: Path) -> None:
    run = train(tmp_path, reward="share_of_digits_or_error", **TWO_STEPS)
    for number, step in enumerate(steps(run), 1):
        failed = 0
        for stored in run.trajectories(number):
            grade, text = stored.trajectory.grade, stored.completion
            assert grade is not None
            assert text is not None
            raises = bool(set(text) & set("aeiou"))
            failed += raises
            assert grade.status is (GradeStatus.FAILED if raises else GradeStatus.GRADED)
            if raises:
                assert grade.reward is None
                assert "cannot judge" in grade.reason
                assert stored.trajectory.columns.advantage is None
        assert step["reward/failed"] == failed > 0
        assert step["reward/ungradable_share"] == pytest.approx(failed / 16)


def test_truncated_completions_leave_the_loss_under_the_overlong_filter(tmp_path: Path) -> None:
    policy = {"algorithm": "grpo", "learning_rate": 2e-3, "overlong": {"filter": "loss"}}
    run = train(tmp_path, policy=policy, **TWO_STEPS)
    cut = [s.trajectory for s in run.trajectories(1) if s.trajectory.finish_reason is FinishReason.LENGTH]
    assert cut
    for trajectory in cut:
        assert trajectory.columns.loss_mask is not None
        assert not trajectory.columns.loss_mask.any()


def test_a_tiny_model_learns_the_toy_task_on_held_out_prompts_too(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "toy.toml", toy_settings(tmp_path, rundir={"trackers": [], "trajectories_every": 0}))
    ended = command_line(["train", config, "--run", tmp_path / "run"], tmp_path / "log", timeout_s=300)
    assert ended.code == 0, ended.err
    run = load_run(tmp_path / "run")
    rewards = [step["reward/mean"] for step in steps(run)]
    assert rewards[0] < 0.1
    assert np.mean(rewards[-5:]) > 0.9
    evaluations = [row.values["evaluation/toy/reward_mean"] for row in run.metrics.rows if row.phase == "evaluation"]
    assert evaluations[0] < 0.1
    assert evaluations[-1] > 0.9
    assert lineage_problems(tmp_path / "run") == []

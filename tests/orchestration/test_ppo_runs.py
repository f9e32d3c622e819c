"""PPO end to end on the toy task: it learns, its critic learns, and what is stored is what the formulas say."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from independent import critic as oracle
from policies import write_toml
from processes import Death, Ended, command_line
from safetensors.torch import load_file
from small_runs import REWARDS, fingerprint, lineage_problems, measured, small_config
from toy_task import toy_settings

from posttrain.rundir.reading import LoadedRun, load_run

PPO: dict[str, Any] = {"algorithm": "ppo", "learning_rate": 2e-3}
QUIET: dict[str, Any] = {"evaluation": {"at_start": False, "at_end": False}}


def toy(folder: Path, critic: dict[str, Any], reward: str = "", **sections: Any) -> LoadedRun:
    folder.mkdir(parents=True, exist_ok=True)
    settings = toy_settings(folder, policy=PPO | {"critic": critic}, **{"rundir": {"trajectories_every": 0}} | sections)
    if reward:
        settings["environments"]["toy"]["reward"] = f"{REWARDS}:{reward}"
    ended = command_line(
        ["train", write_toml(folder / "run.toml", settings), "--run", folder / "run"], folder / "log", timeout_s=300
    )
    assert ended.code == 0, ended.err + ended.out[-2000:]
    return load_run(folder / "run")


def small(folder: Path, policy: dict[str, Any], death: Death | None = None, **sections: Any) -> Ended:
    config = small_config(folder, policy=PPO | policy, **sections)
    return command_line(["train", config, "--run", folder / "run"], folder / "log", death)


def steps(run: LoadedRun) -> list[dict[str, float]]:
    return [dict(row.values) for row in run.metrics.rows if row.phase == "train"]


def course(run: LoadedRun, name: str) -> np.ndarray:
    return np.array([step[name] for step in steps(run)])


def test_the_policy_learns_and_the_critic_explains_more_and_more(tmp_path: Path) -> None:
    run = toy(tmp_path, {"learning_rate": 2e-3}, run={"steps": 100}, evaluation={"samples": 4, "k": [1]})
    rewards = course(run, "reward/mean")
    start, end = rewards[:5], rewards[-5:]
    error = float(np.sqrt(start.var(ddof=1) / 5 + end.var(ddof=1) / 5))
    assert end.mean() - start.mean() > max(3 * error, 0.3)
    explained = course(run, "policy/critic_explained_variance")
    assert explained[:10].mean() < 0.1
    assert explained[70:90].mean() > 0.3
    assert abs(course(run, "policy/value_mean")[-5:].mean() - course(run, "policy/return_mean")[-5:].mean()) < 0.15
    held_out = [r.values["evaluation/toy/reward_mean"] for r in run.metrics.rows if r.phase == "evaluation"]
    assert held_out[-1] > held_out[0] + 0.3


def test_with_flipped_advantages_it_does_not_learn(tmp_path: Path) -> None:
    run = toy(
        tmp_path,
        {"learning_rate": 2e-3},
        "share_of_other_characters",
        run={"steps": 60},
        **QUIET,
        faultmap={"stop_on": "off"},
    )
    shares = 1.0 - course(run, "reward/part/share_of_other_characters/mean")
    start, end = shares[:5], shares[-5:]
    error = float(np.sqrt(start.var(ddof=1) / 5 + end.var(ddof=1) / 5))
    assert end.mean() - start.mean() <= 3 * error


def test_while_the_critic_warms_up_the_policy_stays(tmp_path: Path) -> None:
    run = toy(tmp_path, {"learning_rate": 2e-3, "warmup_steps": 6}, run={"steps": 8}, **QUIET)
    assert [row.policy_version for row in run.metrics.rows if row.phase == "train"] == [0] * 6 + [1, 2]
    values = steps(run)
    assert [step["policy/updates"] for step in values] == [0.0] * 6 + [1.0, 1.0]
    assert ["policy/grad_norm" in step for step in values] == [False] * 6 + [True, True]
    assert all(step["policy/critic_grad_norm"] > 0 for step in values)
    assert all(step["logprobs/mismatch_max"] < 1e-4 for step in values)


KINDS: dict[str, dict[str, Any]] = {
    "one attempt per task": {"rollout": {"group_size": 1, "prompts_per_step": 8}},
    "shared": {"policy": {"critic": {"backbone": "shared", "learning_rate": 1e-2}}},
    "two updates, three passes": {"policy": {"updates_per_batch": 2, "critic": {"learning_rate": 1e-3, "epochs": 3}}},
    "two updates, shared": {"policy": {"updates_per_batch": 2, "critic": {"backbone": "shared"}}},
    "lora": {"model": {"lora": {"rank": 4, "alpha": 8}}},
    "lora, shared": {"model": {"lora": {"rank": 4, "alpha": 8}}, "policy": {"critic": {"backbone": "shared"}}},
    "bfloat16": {"model": {"compute_dtype": "bfloat16"}},
    "checkpointing": {"model": {"gradient_checkpointing": True}},
}


@pytest.mark.parametrize("name", KINDS)
def test_it_trains_in_every_kind_of_run(tmp_path: Path, name: str) -> None:
    kind = dict(KINDS[name])
    policy = {"critic": {"learning_rate": 1e-3}} | kind.pop("policy", {})
    ended = small(tmp_path, policy, run={"steps": 2}, **kind, **QUIET)
    assert ended.code == 0, ended.err + ended.out[-2000:]
    run = load_run(tmp_path / "run")
    assert len(steps(run)) == 2
    for step in steps(run):
        assert np.isfinite([v for v in step.values() if v is not None]).all()
        assert step["policy/critic_grad_norm"] > 0
    stored = load_file(tmp_path / "run" / "checkpoints" / "step_000002" / "critic" / "trainer.safetensors")
    assert stored["master/head.linear.weight"].abs().max() > 0
    backbone = [n for n in stored if n.startswith("master/backbone.")]
    assert bool(backbone) == ("shared" not in name)
    assert all(t.dtype == torch.float32 for t in stored.values())
    assert all(".lora_" in n for n in backbone) or name != "lora"


def test_a_batch_with_nothing_to_train_moves_neither_policy_nor_critic(tmp_path: Path) -> None:
    policy = {"critic": {"learning_rate": 1e-2}, "overlong": {"filter": "loss"}}
    ended = small(tmp_path, policy, run={"steps": 2}, rollout={"max_new_tokens": 1, "group_size": 1}, **QUIET)
    assert ended.code == 0, ended.err + ended.out[-2000:]
    run = load_run(tmp_path / "run")
    empty = [step for step in steps(run) if step["policy/trained_tokens"] == 0]
    assert empty
    for step in empty:
        assert np.isfinite([v for v in step.values() if v is not None]).all()
        assert step["policy/updates"] == 0
        assert "policy/critic_explained_variance" not in step
    if len(empty) == 2:
        stored = load_file(tmp_path / "run" / "checkpoints" / "step_000002" / "critic" / "trainer.safetensors")
        assert not stored["master/head.linear.weight"].any()


@pytest.mark.parametrize("truncated", ["end", "bootstrap"])
def test_stored_values_rewards_and_penalties_give_the_stored_advantages(tmp_path: Path, truncated: str) -> None:
    """Everything the estimate needs is in the trajectory file; an anchor in the reward is paid token by token."""
    critic = {"learning_rate": 1e-2, "gae_lambda": 0.9, "gamma": 0.97, "truncated": truncated}
    policy = {"critic": critic, "anchor": {"weight": 0.5}, "advantage": {"scale": "none"}}
    ended = small(tmp_path, policy, run={"steps": 3}, **QUIET)
    assert ended.code == 0, ended.err + ended.out[-2000:]
    run = load_run(tmp_path / "run")
    cut = penalised = 0
    for stored in run.trajectories(3):
        trajectory = stored.trajectory
        columns, mask = trajectory.columns, trajectory.model_mask
        assert columns.value is not None
        assert columns.trainer_logprob is not None
        assert columns.reference_logprob is not None
        assert columns.advantage is not None
        assert np.isnan(columns.value[~mask]).all()
        rewards = np.where(mask, -0.5 * (columns.trainer_logprob - columns.reference_logprob).astype(np.float64), 0.0)
        penalised += int((np.abs(rewards) > 1e-6).sum())
        rewards[np.flatnonzero(mask)[-1]] += trajectory.reward
        value = columns.value.astype(np.float64)[None]
        want, _ = oracle.gae(rewards[None], value, mask[None], 0.97, 0.9)
        if trajectory.finish_reason == "length" and truncated == "bootstrap":
            cut += 1
            assert not np.allclose(columns.advantage[mask], want[0][mask], atol=1e-6)
            # The difference is one number, the discounted value of where it stopped.
            places = np.flatnonzero(mask)[::-1]
            factors = 0.97 * (0.97 * 0.9) ** np.arange(len(places))
            after = (columns.advantage[places] - want[0][places]) / factors
            assert np.ptp(after) < 1e-4
        else:
            np.testing.assert_allclose(columns.advantage[mask], want[0][mask], atol=1e-5)
    assert penalised > 10
    assert cut > 0 or truncated == "end"


@pytest.mark.parametrize("backbone", ["separate", "shared"])
def test_a_killed_run_resumes_with_its_critic(tmp_path: Path, backbone: str) -> None:
    policy = {"critic": {"learning_rate": 1e-2, "backbone": backbone, "warmup_steps": 3}}
    found: dict[str, Any] = {}
    for name, death in (("whole", None), ("killed", Death("posttrain.orchestration.loop:Loop.train_step", call=4))):
        folder = tmp_path / name
        ended = small(folder, policy, death)
        if death is not None:
            assert ended.code < 0
            ended = command_line(["resume", folder / "run"], folder / "log2")
        assert ended.code == 0, ended.err + ended.out[-1000:]
        file = folder / "run" / "checkpoints" / "step_000006" / "critic" / "trainer.safetensors"
        found[name] = (
            fingerprint(folder / "run"),
            hashlib.sha256(file.read_bytes()).hexdigest(),
            measured(folder / "run"),
        )
        assert lineage_problems(folder / "run") == []
    assert found["killed"] == found["whole"]
    kept = load_file(file)
    assert kept["exp_avg/head.linear.weight"].abs().max() > 0


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"critic": {"backbone": "shared", "epochs": 2}}, "a shared head trains with each policy update"),
        ({"advantage": {"scale": "group_std"}}, "gives each token its own advantage"),
        ({"critic": {"gamma": 0.0}}, "policy.critic.gamma"),
        ({"critic": {"lambda": 0.9}}, "policy.critic.lambda"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_written(
    tmp_path: Path, policy: dict[str, Any], says: str
) -> None:
    ended = small(tmp_path, policy)
    assert ended.code == 2
    assert says in ended.err + ended.out
    assert not (tmp_path / "run").exists()

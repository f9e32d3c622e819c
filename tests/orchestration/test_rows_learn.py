"""Every row of the table, end to end on the toy task: the policy learns, and with flipped advantages it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policies import write_toml
from processes import command_line
from toy_task import toy_settings

from posttrain.rundir.reading import load_run
from posttrain.rundir.trajectories import read_stored
from posttrain.settings.algorithms import ROWS
from posttrain.settings.objective import Need
from posttrain.trajectory import Role

IN_EVERY_RUN = ("remax", "gspo", "pass_at_k", "reinforce_pp")
TAUGHT = {"on_policy_distillation", "gkd"}
EACH = [
    pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.long) for name in ROWS if name not in TAUGHT
]
STEPS = 50


def rewards_of(folder: Path, algorithm: str, flipped: bool = False) -> np.ndarray:
    """Mean share of right characters of each training step; ``flipped`` trains against it."""
    spec = ROWS[algorithm].spec
    updates = 1 if Need.SINGLE_UPDATE in spec.needs else 2
    policy: dict[str, Any] = {"algorithm": algorithm, "updates_per_batch": updates}
    settings = toy_settings(
        folder,
        run={"steps": STEPS},
        policy=policy,
        evaluation={"at_start": False, "at_end": False},
        faultmap={"stop_on": "off"},
        rundir={"trajectories_every": 0},
    )
    toy = settings["environments"]["toy"]
    # A first success is rare at the full reward; one character of four is enough to be one.
    toy["success_threshold"] = 0.25
    rewards = Path(__file__).parents[1] / "helpers" / "small_rewards.py"
    if flipped:
        toy["reward"] = f"{rewards}:share_of_other_characters"
    if Need.REWARD_PARTS in spec.needs:
        toy["reward"] = [toy["reward"], f"{rewards}:is_short"]
    config = write_toml(folder / "toy.toml", settings)
    ended = command_line(["train", config, "--run", folder / "run"], folder / "log", timeout_s=300)
    assert ended.code == 0, ended.err + ended.out[-2000:]
    run = load_run(folder / "run")
    values = [row.values for row in run.metrics.rows if row.phase == "train"]
    assert len(values) == STEPS
    part = "share_of_other_characters" if flipped else "share_of_digit"
    shares = np.array([step[f"reward/part/{part}/mean"] for step in values])
    return 1.0 - shares if flipped else shares


@pytest.mark.parametrize("algorithm", EACH)
def test_the_reward_rises_by_more_than_three_standard_errors(tmp_path: Path, algorithm: str) -> None:
    rewards = rewards_of(tmp_path, algorithm)
    start, end = rewards[:5], rewards[-5:]
    error = float(np.sqrt(start.var(ddof=1) / 5 + end.var(ddof=1) / 5))
    assert end.mean() - start.mean() > max(3 * error, 0.02), (start.mean(), end.mean(), error)


@pytest.mark.parametrize("algorithm", EACH)
def test_with_flipped_advantages_it_does_not_rise(tmp_path: Path, algorithm: str) -> None:
    rewards = rewards_of(tmp_path, algorithm, flipped=True)
    start, end = rewards[:5], rewards[-5:]
    error = float(np.sqrt(start.var(ddof=1) / 5 + end.var(ddof=1) / 5))
    assert end.mean() - start.mean() <= 3 * error


def test_a_greedy_baseline_is_stored_apart_from_its_group(tmp_path: Path) -> None:
    settings = toy_settings(
        tmp_path,
        run={"steps": 2},
        policy={"algorithm": "remax"},
        rollout={"prompts_per_step": 3, "group_size": 4},
        evaluation={"at_start": False, "at_end": False},
    )
    config = write_toml(tmp_path / "toy.toml", settings)
    ended = command_line(["train", config, "--run", tmp_path / "run"], tmp_path / "log", timeout_s=300)
    assert ended.code == 0, ended.err
    run = load_run(tmp_path / "run")
    for step, path in run.trajectory_files.items():
        everything = [s.trajectory for s in read_stored(path)]
        greedy = [t for t in everything if t.role is Role.BASELINE]
        assert len(everything) == 3 * (4 + 1)
        assert len(greedy) == len({t.group_id for t in greedy}) == 3
        assert all(t.sampling.temperature == 0.0 for t in greedy)
        assert all(t.columns.advantage is None for t in greedy), "nobody trains on what the others are compared with"
        members = [s.trajectory for s in run.trajectories(step)]
        assert {t.trajectory_id for t in members} == {t.trajectory_id for t in everything if t.role is Role.TRAIN}
        baseline = {t.group_id: t.reward for t in greedy}
        for member in members:
            assert member.columns.advantage is not None
            trained = member.columns.advantage[member.model_mask]
            np.testing.assert_allclose(trained, member.reward - baseline[member.group_id], atol=1e-6)

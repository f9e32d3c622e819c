"""Each format, as its framework writes it, becomes the same courses."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_logs import trl_rows, verl_line, verl_rows, write_lines, write_trainer_state

from posttrain.errors import InputError
from posttrain.faultmap.history import History
from posttrain.faultmap.readers import read_history
from posttrain.signals.framework import Framework


def is_trl(history: History, *, steps: list[int]) -> None:
    """The courses of ``trl_rows``."""
    assert history.framework is Framework.TRL
    reward = history.course("reward/mean")
    assert reward.steps.tolist() == steps
    np.testing.assert_allclose(reward.values, np.arange(1, len(steps) + 1) / 12)
    np.testing.assert_allclose(history.course("policy/clip_fraction").values, 0.03)
    assert history.course("reward/part/correct/mean").values[-1] == pytest.approx(len(steps) / 12)
    assert history.course("rollout/total_tokens").values[0] == 5000.0
    assert not history.has("policy/trained_tokens")


STEPS = [5 * i for i in range(1, 13)]


def test_trainer_state(tmp_path: Path) -> None:
    history = read_history(write_trainer_state(tmp_path / "trainer_state.json", trl_rows()))
    is_trl(history, steps=STEPS)
    assert history.facts.planned_steps == 300
    assert history.problems == ()
    assert any("trainer_state.json of TRL" in note for note in history.notes)
    assert {u.key for u in history.unmapped} == {"train_runtime", "train_loss"}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_bare_list_of_steps(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "step_logs.json"
    path.write_text(json.dumps(trl_rows(), indent=indent))
    is_trl(read_history(path), steps=STEPS)


def test_json_lines(tmp_path: Path) -> None:
    is_trl(read_history(write_lines(tmp_path / "log.jsonl", trl_rows())), steps=STEPS)


def test_packed_json_lines(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in trl_rows())
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    is_trl(read_history(tmp_path / "log.jsonl.gz"), steps=STEPS)


def test_a_trainer_state_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"log_history": trl_rows(), "max_steps": 60}) + "\n")
    history = read_history(path)
    is_trl(history, steps=STEPS)
    assert history.facts.planned_steps == 60


def test_columns_as_one_json_object(tmp_path: Path) -> None:
    rows = verl_rows()
    path = tmp_path / "history.json"
    path.write_text(json.dumps({key: [row[key] for row in rows] for key in rows[0]}))
    assert read_history(path).course("reward/mean").values[-1] == 1.0


def test_console_dicts_of_trl_take_the_steps_of_the_progress_bar(tmp_path: Path) -> None:
    lines = ["Loading checkpoint shards: 100%|###| 2/2 [00:00<00:00,  5.83it/s]"]
    for row in trl_rows()[:-1]:
        shown = {key: f"{value:.4g}" for key, value in row.items() if key != "step"}
        lines.append(f" 10%|#   | {row['step']}/60 [00:30<04:00,  3.0s/it]\r{shown}")
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    history = read_history(path)
    assert history.framework is Framework.TRL
    assert history.course("reward/mean").steps.tolist() == STEPS
    assert history.course("policy/entropy").values[0] == pytest.approx(0.4833, abs=1e-4)


def test_console_dicts_without_a_bar_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(str({k: v for k, v in row.items() if k != "step"}) for row in trl_rows()[:-1]))
    history = read_history(path)
    assert history.course("reward/mean").steps.tolist() == list(range(1, 13))
    assert any("no step counter" in note for note in history.notes)


def test_console_dicts_with_nan_and_infinity(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "{'loss': nan, 'grad_norm': inf, 'reward': 0.5, 'reward_std': '0.1', 'kl': None}\n"
        "{'loss': -inf, 'grad_norm': 'nan', 'reward': '0.25', 'reward_std': 0.1, 'kl': 0.5}\n"
    )
    history = read_history(path)
    assert history.course("reward/mean").values.tolist() == [0.5, 0.25]
    loss, norm = history.course("policy/loss").values, history.course("policy/grad_norm").values
    assert math.isnan(loss[0])
    assert loss[1] == -math.inf
    assert norm[0] == math.inf
    assert math.isnan(norm[1])


def test_verl_file_logger(tmp_path: Path) -> None:
    rows = [{"step": i, "data": row} for i, row in enumerate(verl_rows(), 1)]
    history = read_history(write_lines(tmp_path / "exp.jsonl", rows))
    assert history.framework is Framework.VERL
    assert history.course("reward/mean").values[-1] == 1.0, "the score, not the reward after the penalty"
    assert history.course("logprobs/mismatch_bias").values[0] == -0.002
    assert history.course("reward/mean").steps.tolist() == list(range(1, 13))


def test_verl_console(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = ["INFO: starting", "[prompt] a question with step: and - dashes"]
    for i, row in enumerate(verl_rows(), 1):
        lines.append(f"\x1b[36m(TaskRunner pid=77)\x1b[0m {verl_line(i, row)}")
    path.write_text("\n".join(lines).replace("actor/lr:1e-06", "actor/lr:np.float64(1e-06)"))
    history = read_history(path)
    assert history.framework is Framework.VERL
    np.testing.assert_allclose(history.course("policy/learning_rate").values, 1e-6)
    assert history.course("policy/approx_kl").values[0] == -0.0001
    assert history.course("policy/loss").steps.tolist() == list(range(1, 13))


def test_older_keys_of_verl_are_scaled(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "test_score/openai/gsm8k": 0.5},
        {"step": 0, "actor/lr(1e-4)": 0.01, "critic/score/mean": 0.4, "actor/entropy_loss": 0.4},
        {"step": 1, "actor/lr(1e-4)": 0.01, "critic/score/mean": 0.5, "actor/entropy_loss": 0.4},
        {"step": 5, "val/test_score/openai/gsm8k": 0.6},
    ]
    history = read_history(write_lines(tmp_path / "v.jsonl", rows))
    assert history.course("policy/learning_rate").values == pytest.approx([1e-6, 1e-6])
    held_out = history.course("evaluation/openai.gsm8k/reward_mean")
    assert held_out.steps.tolist() == [0, 5], "a key that was renamed goes on under its other name"
    assert held_out.values.tolist() == [0.5, 0.6]


def test_openrlhf_console(tmp_path: Path) -> None:
    path = tmp_path / "o.log"
    path.write_text(
        "".join(
            f"INFO 08-13 10:00:0{i} ppo_trainer.py:120] ✨ Global step {10 * i}: "
            f"{ {'policy_loss': 0.1, 'reward': i / 4, 'ppo_clip_ratio': 0.01, 'actor_lr': 1e-6, 'kl': 0.02} }\n"
            for i in range(1, 5)
        )
    )
    history = read_history(path)
    assert history.framework is Framework.OPENRLHF
    assert history.course("reward/mean").steps.tolist() == [10, 20, 30, 40]
    assert history.course("policy/clip_fraction").values.tolist() == [0.01] * 4


def test_wandb_json_lines_of_trl(tmp_path: Path) -> None:
    rows = [
        {f"train/{key}" if key != "step" else "train/global_step": value for key, value in row.items()}
        | {"_step": i, "_runtime": 10.0 * i, "_timestamp": 1.7e9 + i, "eval/reward": None}
        for i, row in enumerate(trl_rows())
    ]
    history = read_history(write_lines(tmp_path / "history.jsonl", rows))
    is_trl(history, steps=STEPS)
    assert "evaluation/eval/reward_mean" not in history.courses, "null means not logged in an export"


def test_wandb_csv_export_of_one_run_among_two(tmp_path: Path) -> None:
    path = tmp_path / "wandb_export.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["a - critic/score/mean", "a - critic/score/mean__MIN", "a - critic/score/mean__MAX", "a - actor/lr"]
        writer.writerow(["Step", *names, "b - actor/lr"])
        for i in range(6):
            writer.writerow([i, i / 5, 0, 1, "" if i == 2 else "1e-6", "3e-6"])
    history = read_history(path)
    assert history.framework is Framework.VERL
    assert history.course("reward/mean").values.tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert history.course("policy/learning_rate").steps.tolist() == [0, 1, 3, 4, 5]
    assert any("several runs" in note and "`b`" in note for note in history.notes)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_plain_tables(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "log.csv"
    header = ["step", "mean_reward", "lr", "comment"]
    rows = [[str(i), str(i / 4), "1e-5", "fine, so far" if delimiter != "," else "fine"] for i in range(5)]
    path.write_text("\n".join(delimiter.join(row) for row in [header, *rows]))
    history = read_history(path)
    assert history.framework is Framework.PLAIN
    assert history.course("reward/mean").values.tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert any("No framework was recognised" in note for note in history.notes)


def test_plain_json_lines_with_names_of_ours(tmp_path: Path) -> None:
    rows = [{"iteration": i, "reward/mean": i / 4, "policy/entropy": 0.5, "mine": 3} for i in range(5)]
    history = read_history(write_lines(tmp_path / "x.jsonl", rows))
    assert history.course("reward/mean").steps.tolist() == [0, 1, 2, 3, 4]
    assert [u.key for u in history.unmapped] == ["mine"]
    assert history.unmapped[0].points == 5


def test_the_framework_can_be_told(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": i / 4, "kl": 0.1} for i in range(5)]
    path = write_lines(tmp_path / "x.jsonl", rows)
    assert read_history(path).framework is Framework.PLAIN
    history = read_history(path, Framework.TRL)
    assert history.framework is Framework.TRL
    assert any("k3 against the reference" in note for note in history.notes)


def test_reward_std_of_an_old_release_is_that_within_groups(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": 0.5, "reward_std": 0.2, "completion_length": 10.0} for i in range(4)]
    history = read_history(write_lines(tmp_path / "x.jsonl", rows))
    assert history.has("reward/group_std_mean")
    assert not history.has("reward/std")
    newer = [row | {"frac_reward_zero_std": 0.5} for row in rows]
    history = read_history(write_lines(tmp_path / "y.jsonl", newer))
    assert history.has("reward/std")
    assert not history.has("reward/group_std_mean")


def test_a_log_without_any_known_metric_is_refused_with_its_keys(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"step": i, "alpha": 1.0} for i in range(3)])
    with pytest.raises(InputError, match="`alpha`"):
        read_history(path)

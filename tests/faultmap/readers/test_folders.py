"""A folder with logs: which is taken, and what is said about the others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_logs import trl_rows, verl_rows, write_lines, write_trainer_state

from posttrain.errors import InputError
from posttrain.faultmap.readers import read_history
from posttrain.signals.framework import Framework


def write_completions(folder: Path, step: int, rewards: list[float | None], *, prompts: int = 2) -> Path:
    """One file of completions as TRL saves them: groups of equal size, one prompt after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    size = len(rewards) // prompts
    path = folder / f"completions_{step:05d}.parquet"
    table = pa.table(
        {
            "step": [step] * len(rewards),
            "prompt": [[{"role": "user", "content": f"task {i // size}"}] for i in range(len(rewards))],
            "completion": [[{"role": "assistant", "content": f"answer {i}"}] for i in range(len(rewards))],
            "correct": rewards,
            "format": [0.5] * len(rewards),
            "advantage": [0.0] * len(rewards),
        }
    )
    pq.write_table(table, path)
    return path


def test_the_state_of_the_last_checkpoint_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    rows = trl_rows()
    for step in (20, 60, 40):
        write_trainer_state(
            tmp_path / f"checkpoint-{step}" / "trainer_state.json", [r for r in rows if r["step"] <= step]
        )
    (tmp_path / "checkpoint-60" / "training_args.bin").write_bytes(b"\x80\x04pickle")
    history = read_history(tmp_path)
    assert int(history.steps[-1]) == 60
    assert any("`checkpoint-60/trainer_state.json` was read" in note for note in history.notes)
    others = next(note for note in history.notes if note.startswith("Other logs"))
    assert "checkpoint-20" in others
    assert "checkpoint-40" in others


def test_completions_beside_the_checkpoints_are_its_samples(tmp_path: Path) -> None:
    write_trainer_state(tmp_path / "checkpoint-60" / "trainer_state.json", trl_rows())
    for step in (5, 10):
        write_completions(tmp_path / "completions", step, [1.0, 0.0, None, 0.0])
    history = read_history(tmp_path)
    assert history.samples is not None
    assert list(history.samples.steps()) == [5, 10]
    samples = history.samples.read(10)
    assert [s.group_id for s in samples] == ["10/0", "10/0", "10/1", "10/1"]
    assert samples[0].prompt == "task 0"
    assert samples[0].completion == "answer 0"
    assert samples[0].reward == 1.5
    assert samples[2].parts == {"format": 0.5}
    assert history.samples.read(7) == []


def test_completions_alone(tmp_path: Path) -> None:
    write_completions(tmp_path, 1, [1.0, 1.0, 0.0, 1.0])
    write_completions(tmp_path, 2, [1.0, 1.0, 1.0, 1.0])
    (tmp_path / "completions_00003.parquet").write_bytes(b"PAR1 broken")
    history = read_history(tmp_path)
    assert history.framework is Framework.TRL
    assert history.course("reward/part/correct/mean").values.tolist() == [0.75, 1.0]
    assert history.course("reward/zero_variance_groups").values.tolist() == [0.5, 1.0]
    assert history.course("rollout/unique_share").values.tolist() == [1.0, 1.0]
    assert any("completions_00003" in problem for problem in history.problems)


def test_one_file_of_completions(tmp_path: Path) -> None:
    history = read_history(write_completions(tmp_path, 7, [1.0, 0.0, 0.0, 0.0]))
    assert history.course("reward/part/correct/mean").steps.tolist() == [7]


def test_a_parquet_table_of_metrics(tmp_path: Path) -> None:
    rows = verl_rows()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "history.parquet")
    history = read_history(tmp_path / "history.parquet")
    assert history.framework is Framework.VERL
    assert history.course("reward/mean").values[-1] == 1.0


def test_an_unreadable_log_is_named_and_the_next_is_taken(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("not json\nat all\n")
    write_lines(tmp_path / "old.jsonl", verl_rows())
    history = read_history(tmp_path)
    assert history.framework is Framework.VERL
    assert any("metrics.jsonl" in problem for problem in history.problems)


def test_logs_below_a_folder_are_found(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    write_lines(deep / "log.jsonl", verl_rows())
    assert read_history(tmp_path).framework is Framework.VERL


def test_links_and_pipes_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="holds no log that can be read"):
        read_history(tmp_path)
    write_lines(tmp_path / "log.jsonl", verl_rows())
    assert read_history(tmp_path).framework is Framework.VERL


def test_an_empty_folder_and_one_without_logs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no log"):
        read_history(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"learning_rate": 1e-5}))
    with pytest.raises(InputError, match=r"looked at `config\.json`"):
        read_history(tmp_path)

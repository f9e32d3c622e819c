"""Rows of real files as tasks: what is read, how it is split, what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.environment.build import build_environment, build_environments
from posttrain.environment.protocol import Attempt, Environment, RewardKind
from posttrain.environment.rows import RowFormat, load_split
from posttrain.environment.sources import read_rows
from posttrain.errors import InputError
from posttrain.settings.environments import FunctionSettings, RowsSettings
from posttrain.trajectory import FinishReason, GradeStatus, Message

ROWS = [{"prompt": f"What is {i} + 1?", "answer": i + 1, "level": [i, None]} for i in range(20)]


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_every_format_gives_the_same_tasks(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    sources = [jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "rows.parquet", tmp_path / "saved"]
    splits = [load_split("e", source, RowFormat(), evaluation_fraction=0.2) for source in sources]
    assert splits[0] == splits[1] == splits[2]
    assert (len(splits[0].train), len(splits[0].evaluation)) == (16, 4)
    task = min((*splits[0].train, *splits[0].evaluation), key=lambda t: t.gold)
    assert (task.task_id, task.gold, task.messages) == ("e:1", 1, (Message("user", "What is 0 + 1?"),))
    assert task.metadata == {"answer": 1, "level": [0, None]}


def test_csv_is_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('prompt,answer\n"Two, please?",2\nThree?,3\n')
    split = load_split("e", tmp_path / "rows.csv", RowFormat())
    assert [(t.messages[0].content, t.gold) for t in split.train] == [("Two, please?", "2"), ("Three?", "3")]
    (tmp_path / "ragged.csv").write_text("prompt,answer\nTwo?\n")
    with pytest.raises(InputError, match="line 2"):
        read_rows("path", tmp_path / "ragged.csv")


def test_values_become_json(tmp_path: Path) -> None:
    import datetime
    import decimal

    row = {
        "day": datetime.date(2024, 2, 29),
        "price": decimal.Decimal("1.50"),
        "ratio": float("nan"),
        "deep": {"a": [1.5]},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    values = read_rows("path", tmp_path / "rows.parquet")[0].values
    assert values == {"day": "2024-02-29", "price": "1.50", "ratio": None, "deep": {"a": [1.5]}}
    json.dumps(values, allow_nan=False)
    pq.write_table(pa.Table.from_pylist([{"image": b"png"}]), tmp_path / "bytes.parquet")
    with pytest.raises(InputError, match="'image'"):
        read_rows("path", tmp_path / "bytes.parquet")


def test_message_lists_keep_their_roles(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    split = load_split("e", jsonl(tmp_path / "r.jsonl", [{"prompt": messages, "answer": "x"}]), RowFormat())
    assert split.train[0].messages == (Message("system", "Be brief."), Message("user", "Hi"))


@settings(max_examples=25)
@given(seed=st.integers(0, 999), fraction=st.floats(0.01, 0.9), copies=st.integers(1, 3))
def test_a_prompt_is_never_on_both_sides(tmp_path_factory: Any, seed: int, fraction: float, copies: int) -> None:
    path = jsonl(tmp_path_factory.mktemp("rows") / "r.jsonl", ROWS * copies)
    split = load_split("e", path, RowFormat(), evaluation_fraction=fraction, split_seed=seed)
    train, held_out = ({t.messages for t in part} for part in (split.train, split.evaluation))
    assert not train & held_out
    assert len(held_out) == max(1, round(fraction * 20))
    assert len(split.train) + len(split.evaluation) == 20 * copies


def test_the_split_follows_its_seed_and_not_the_order_of_rows(tmp_path: Path) -> None:
    def held_out(rows: Sequence[Any], seed: int) -> set[str]:
        path = jsonl(tmp_path / "r.jsonl", rows)
        split = load_split("e", path, RowFormat(), evaluation_fraction=0.25, split_seed=seed)
        return {t.messages[0].content for t in split.evaluation}

    assert held_out(ROWS, 1) == held_out(ROWS[::-1], 1)
    assert held_out(ROWS, 1) != held_out(ROWS, 2)


def test_an_evaluation_file_is_held_out_whole_and_must_not_overlap(tmp_path: Path) -> None:
    train, other = jsonl(tmp_path / "a.jsonl", ROWS[:5]), jsonl(tmp_path / "b.jsonl", ROWS[5:8])
    split = load_split("e", train, RowFormat(), evaluation_path=other, evaluation_fraction=0.5)
    assert (len(split.train), [t.task_id for t in split.evaluation]) == (
        5,
        ["e:evaluation-1", "e:evaluation-2", "e:evaluation-3"],
    )
    with pytest.raises(InputError, match=r"e:evaluation-2 asks the same as training task e:5"):
        load_split("e", train, RowFormat(), evaluation_path=jsonl(tmp_path / "c.jsonl", [ROWS[6], ROWS[4]]))


def test_an_id_used_twice_names_both_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": i, "key": k} for i, k in enumerate(["a", "b", "a"])]
    with pytest.raises(InputError, match=r"r\.jsonl:1 and of r\.jsonl:3"):
        load_split("e", jsonl(tmp_path / "r.jsonl", rows), RowFormat(id_column="key"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"prompt": "q", "answer": 1}\n{broken\n', r"r\.jsonl:2.*is not JSON"),
        ("[1, 2]\n", "not a JSON object"),
        ('{"prompt": "q"}\n', "no value in column 'answer'"),
        ('{"prompt": "q", "answer": null}\n', "no value in column 'answer'"),
        ('{"question": "q", "answer": 1}\n', "no value in column 'prompt'.*question, answer"),
        ('{"prompt": " ", "answer": 1}\n', "neither text nor a list"),
        ('{"prompt": [], "answer": 1}\n', "neither text nor a list"),
        ('{"prompt": [{"role": "user"}], "answer": 1}\n', "a prompt message is"),
        ('{"prompt": [{"role": "assistant", "content": "x"}], "answer": 1}\n', "ends with an assistant"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(InputError, match=problem):
        load_split("e", tmp_path / "r.jsonl", RowFormat())


def test_paths_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "splits" / "train").mkdir(parents=True)
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for path, problem in (
        ("missing.jsonl", "does not exist"),
        ("rows.txt", "unknown ending '.txt'"),
        ("bad.parquet", "cannot be read"),
        ("splits", "Give one of them: train"),
        ("empty", "not one saved by datasets"),
    ):
        with pytest.raises(InputError, match=problem):
            read_rows("environments.e.path", tmp_path / path)


def test_holding_out_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds out all of the 1"):
        load_split("e", jsonl(tmp_path / "r.jsonl", ROWS[:1] * 3), RowFormat(), evaluation_fraction=0.5)


def test_settings_become_a_verified_environment(tmp_path: Path) -> None:
    environment = build_environment("e", RowsSettings(path=str(jsonl(tmp_path / "r.jsonl", ROWS))))
    assert isinstance(environment, Environment)
    assert environment.reward_kind is RewardKind.VERIFIABLE
    task = environment.tasks().train[0]
    grade = environment.grade([Attempt(task, f"It is {task.gold}.", task.messages, FinishReason.STOP, 1)])[0]
    assert (grade.status, grade.reward) == (GradeStatus.GRADED, 1.0)
    with pytest.raises(InputError, match="needs gold answers"):
        build_environment("e", RowsSettings(path=str(tmp_path / "r.jsonl"), gold_column=None))


def test_settings_become_an_environment_with_a_function(tmp_path: Path) -> None:
    path = str(jsonl(tmp_path / "r.jsonl", ROWS))
    (tmp_path / "mine.py").write_text(
        "def right(completions, gold):\n    return [float(c == str(g)) for c, g in zip(completions, gold)]\n"
        "def short(completions, level):\n    return [-float(len(c)) for c in completions]\n"
    )
    targets = (f"{tmp_path}/mine.py:right", f"{tmp_path}/mine.py:short")
    options: dict[str, Any] = {"path": path, "gold_column": "answer", "reward": targets, "reward_weights": (1.0, 0.25)}
    environment = build_environment("e", FunctionSettings(**options))
    task = environment.tasks().train[0]
    text = str(task.gold)
    (grade,) = environment.grade([Attempt(task, text, task.messages, FinishReason.STOP, 1)])
    environment.close()
    assert environment.reward_kind is RewardKind.SOFT
    assert grade.reward == 1.0 - 0.25 * len(text)
    with pytest.raises(InputError, match="1 weights for 2 functions"):
        build_environments({"e": FunctionSettings(**{**options, "reward_weights": (1.0,)})})

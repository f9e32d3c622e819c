"""TensorBoard event files, as tensorboard itself writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_logs import trl_rows
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from posttrain.errors import InputError
from posttrain.faultmap.readers import read_history
from posttrain.faultmap.readers.events import _masked  # pyright: ignore[reportPrivateUsage]
from posttrain.signals.framework import Framework


def write_events(
    folder: Path, values: list[tuple[int, str, float]], arguments: dict[str, object] | None = None
) -> Path:
    """An event file with one scalar an event; ``arguments`` as the text transformers writes."""
    writer = EventFileWriter(str(folder))
    if arguments is not None:
        tensor = tensor_pb2.TensorProto(dtype=7, string_val=[json.dumps(arguments).encode()])
        value = summary_pb2.Summary.Value(tag="args/text_summary", tensor=tensor)
        writer.add_event(event_pb2.Event(wall_time=1.0, summary=summary_pb2.Summary(value=[value])))
    for step, tag, number in values:
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=number)])
        writer.add_event(event_pb2.Event(wall_time=1.0 + step, step=step, summary=summary))
    writer.close()
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def trl_scalars() -> list[tuple[int, str, float]]:
    return [
        (row["step"], f"train/{key}", float(value)) for row in trl_rows() for key, value in row.items() if key != "step"
    ]


def test_checksum_of_a_known_text() -> None:
    # CRC-32C of "123456789" is 0xE3069283 (RFC 3720 lists the polynomial); masked as TFRecord does.
    crc = 0xE3069283
    assert _masked(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_trl_with_its_arguments(tmp_path: Path) -> None:
    arguments = {
        "num_generations": 8,
        "beta": 0.04,
        "learning_rate": 1e-6,
        "max_completion_length": 256,
        "temperature": 0.9,
        "num_iterations": 2,
        "max_steps": -1,
        "bf16": True,
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "warmup_steps": "many",
    }
    history = read_history(write_events(tmp_path, trl_scalars(), arguments))
    assert history.framework is Framework.TRL
    assert history.course("reward/mean").steps.tolist() == [5 * i for i in range(1, 13)]
    assert history.course("reward/mean").values[-1] == 1.0
    assert history.problems == ()
    facts = history.facts
    assert (facts.group_size, facts.anchor_weight, facts.max_new_tokens) == (8, 0.04, 256)
    assert (facts.temperature, facts.updates_per_batch, facts.corrected) == (0.9, 2, True)
    assert (facts.planned_steps, facts.warmup_steps, facts.compute_dtype) == (None, None, "bfloat16")


def test_numbers_in_tensors(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    kinds = {
        "reward/mean": tensor_pb2.TensorProto(dtype=1, float_val=[0.5]),
        "policy/entropy": tensor_pb2.TensorProto(dtype=2, double_val=[0.25]),
        "policy/grad_norm": tensor_pb2.TensorProto(dtype=1, tensor_content=b"\0\0\x80\x3f"),
        "policy/loss": tensor_pb2.TensorProto(dtype=1, float_val=[1.0, 2.0]),
    }
    for tag, tensor in kinds.items():
        value = summary_pb2.Summary.Value(tag=tag, tensor=tensor)
        writer.add_event(event_pb2.Event(wall_time=1.0, step=3, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    history = read_history(next(tmp_path.iterdir()))
    assert history.framework is Framework.PLAIN, "three names of ours are no run of ours"
    assert {name: course.values.tolist() for name, course in history.courses.items()} == {
        "reward/mean": [0.5],
        "policy/entropy": [0.25],
        "policy/grad_norm": [1.0],
    }


def test_a_file_cut_in_a_record(tmp_path: Path) -> None:
    path = write_events(tmp_path, trl_scalars())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    history = read_history(path)
    assert 3 <= len(history.course("reward/mean")) < 12
    assert any("cut off" in problem for problem in history.problems)


def test_a_flipped_byte_in_a_record_loses_that_record_alone(tmp_path: Path) -> None:
    path = write_events(tmp_path, trl_scalars())
    content = bytearray(path.read_bytes())
    at = content.index(b"train/reward", len(content) // 2)
    content[at] ^= 1
    path.write_bytes(bytes(content))
    history = read_history(path)
    assert any("wrong checksum" in problem for problem in history.problems)
    assert (
        sum(len(course) for course in history.courses.values())
        == sum(len(course) for course in read_history(write_events(tmp_path / "whole", trl_scalars())).courses.values())
        - 1
    )


def test_a_length_that_lies_stops_reading(tmp_path: Path) -> None:
    path = write_events(tmp_path, trl_scalars())
    content = path.read_bytes()
    path.write_bytes(content + b"\xff" * 40)
    history = read_history(path)
    assert len(history.course("reward/mean")) == 12
    assert any("is damaged" in problem for problem in history.problems)


def test_event_files_of_one_folder_are_one_run(tmp_path: Path) -> None:
    scalars = trl_scalars()
    first = write_events(tmp_path / "a", [one for one in scalars if one[0] <= 40])
    second = write_events(tmp_path / "b", [(s, tag, v + 100) for s, tag, v in scalars if s > 30])
    folder = tmp_path / "runs" / "today"
    folder.mkdir(parents=True)
    os.rename(first, folder / "events.out.tfevents.1.host")
    os.rename(second, folder / "events.out.tfevents.2.host")
    history = read_history(tmp_path / "runs")
    reward = history.course("reward/mean")
    assert reward.steps.tolist() == [5 * i for i in range(1, 13)]
    assert reward.values[5] < 1 < reward.values[6]
    assert any("2 event files" in note for note in history.notes)
    assert any("logged again" in note for note in history.notes)


def test_a_file_without_scalars(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no scalars"):
        read_history(write_events(tmp_path, []))

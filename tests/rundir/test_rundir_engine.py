"""engine.jsonl: samples from outside, which never disturb the run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.rundir.engine import DeviceUse, EngineSampler, read_engine
from posttrain.rundir.files import DamagedFileError


@dataclass
class Counters:
    running: int = 3
    waiting: int = 5
    preempted: int = 1
    kv_bytes_used: int = 1000
    kv_bytes_allocated: int = 3000
    kv_bytes_limit: int = 4000
    generated_tokens: int = 0
    policy_version: int = 2


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.005)
    pytest.fail(f"no {count} samples in 10 s")


def test_rates_are_over_the_time_between_samples(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"
    start = time.monotonic()
    counters = Counters()

    def stats() -> Counters:
        counters.generated_tokens = int((time.monotonic() - start) * 10_000)
        return counters

    sampler = EngineSampler(
        path,
        4,
        stats,
        trained_tokens=lambda: int((time.monotonic() - start) * 1_000),
        phase=lambda: "rollout",
        device=lambda: DeviceUse(77, 0.5),
        interval_s=0.12,
    )
    with sampler:
        wait_for_lines(path, 5)
    series = read_engine(path)
    assert not series.problems
    first, *others = (s for s in series.samples if s.trained_tokens_per_second or s is series.samples[0])
    assert first.generated_tokens_per_second is None, "there is nothing before the first sample"
    assert sum(s.generated_tokens_per_second or 0 for s in others) / len(others) == pytest.approx(10_000, rel=0.2)
    assert sum(s.trained_tokens_per_second or 0 for s in others) / len(others) == pytest.approx(1_000, rel=0.2)
    last = others[-1]
    assert (last.attempt, last.phase, last.running, last.waiting, last.preempted) == (4, "rollout", 3, 5, 1)
    assert (last.kv_bytes_used, last.kv_bytes_allocated, last.kv_bytes_limit) == (1000, 3000, 4000)
    assert last.policy_version == 2
    assert (last.device_memory, last.device_utilisation) == (77, 0.5)
    assert last.cpu_share is not None
    assert 0.0 <= last.cpu_share <= 1.2
    assert last.memory is not None
    assert last.memory > 1 << 20
    assert sampler.failures == 0


def test_a_source_that_raises_is_null_and_counted_never_zero(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"

    def broken() -> Counters:
        raise RuntimeError("engine is gone")

    with EngineSampler(path, 1, broken, trained_tokens=lambda: 5, interval_s=0.01) as sampler:
        wait_for_lines(path, 2)
    sample = read_engine(path).samples[-1]
    assert sample.running is None
    assert sample.generated_tokens_per_second is None
    assert sample.problem == "engine: RuntimeError: engine is gone"
    assert sample.memory is not None
    assert sampler.failures >= 2
    assert "engine is gone" in sampler.problem


def test_a_directory_that_vanishes_does_not_reach_the_run(tmp_path: Path) -> None:
    sampler = EngineSampler(tmp_path / "gone" / "engine.jsonl", 1, Counters, interval_s=0.01)
    with sampler:
        time.sleep(0.1)
    assert sampler.failures >= 2
    assert "FileNotFoundError" in sampler.problem


def test_stop_takes_a_last_sample_without_waiting_for_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"
    start = time.monotonic()
    with EngineSampler(path, 1, Counters, interval_s=60.0):
        pass
    assert time.monotonic() - start < 5.0
    assert len(read_engine(path).samples) == 1


def test_damaged_lines_are_named_and_attempts_are_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"
    lines = [
        json.dumps({"time": 2.0, "attempt": 1, "running": 1, "future_key": 3}),
        "null",
        json.dumps({"time": "soon", "attempt": 1}),
        json.dumps({"time": 1.0, "attempt": 1}),
        '{"time": 3.0, "att',
    ]
    path.write_text("\n".join(lines))
    series = read_engine(path)
    assert [s.time for s in series.samples] == [1.0, 2.0]
    assert [p.split(":")[1] for p in series.problems] == ["2", "3", "5"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"engine\.jsonl: cannot be read"):
        read_engine(tmp_path / "engine.jsonl")


def test_a_rate_over_almost_no_time_is_not_known(tmp_path: Path) -> None:
    """A last sample right after another would divide by almost nothing."""
    path = tmp_path / "engine.jsonl"
    with EngineSampler(path, 1, Counters, interval_s=0.02):
        wait_for_lines(path, 12)
    samples = read_engine(path).samples
    known = [s for s in samples if s.cpu_share is not None]
    assert 1 <= len(known) < len(samples) / 2
    assert all(s.cpu_share is not None and s.cpu_share <= 1.2 for s in known)

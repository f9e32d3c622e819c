"""The machine as this process may use it, and the allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from posttrain.model.runtime import available_memory, probe_machine, set_threads, tune_allocator, usable_cores

FAULTS = """
import resource, sys
import torch
from posttrain.model.runtime import tune_allocator
torch.set_num_threads(1)
if sys.argv[1] == "tuned":
    tune_allocator()
def temporary():
    torch.empty(12_000_000)[::1024].fill_(1.0)  # 48 MB: above the size up to which glibc adapts by itself
for _ in range(8):
    temporary()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    temporary()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is tuned on Linux only")
def test_large_temporaries_stop_costing_page_faults() -> None:
    assert faults("tuned") < 0.1 * faults("plain")


def test_what_was_done_is_one_sentence() -> None:
    sentence = tune_allocator()
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_cpu_quota_counts_as_cores(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    affinity = usable_cores(tmp_path / "absent")
    for text, expected in (
        ("50000 100000", 1),
        ("max 100000", affinity),
        ("garbage", affinity),
        ("99900000 100000", affinity),
    ):
        quota.write_text(text)
        assert usable_cores(quota) == expected, text


def test_a_container_limit_counts_as_memory(tmp_path: Path) -> None:
    limit, usage = tmp_path / "memory.max", tmp_path / "memory.current"
    usage.write_text("1000\n")
    limit.write_text("1500\n")
    assert available_memory([(str(limit), str(usage))]) == 500
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 300\n")
    assert available_memory([(str(limit), str(usage))]) == 800
    limit.write_text("max\n")
    free = psutil.virtual_memory().available
    assert available_memory([(str(limit), str(usage)), ("/absent", "/absent")]) == pytest.approx(free, rel=0.3)


def test_the_probe_agrees_with_this_process() -> None:
    facts = probe_machine()
    assert 1 <= facts.cores <= (os.cpu_count() or 1)
    assert 0 < facts.memory_bytes <= psutil.virtual_memory().total
    assert bool(facts.cuda) == torch.cuda.is_available()


def test_threads_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        set_threads(0)

"""The process a model runs in: what the machine offers, threads, and the memory allocator."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch

from posttrain.settings.facts import CudaDevice, MachineFacts

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def tune_allocator() -> str:
    """Make the C library keep freed memory instead of giving it back at once. Returns what was done, as a sentence.

    By default glibc maps every large block anew and unmaps it when freed (always beyond 32 MB, below that depending
    on what was freed before), and trims its heap, so that temporaries of a forward pass pay for the same page faults
    again and again: several times the cost of filling them. The price: the process keeps its peak. Does nothing where
    the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return "The memory allocator was left as it is (not glibc)."
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    accepted = mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    if not accepted:
        return "The memory allocator was left as it is (glibc refused the options)."
    return "The memory allocator keeps freed memory for the next step (saves page faults; memory stays at its peak)."


def set_threads(threads: int) -> None:
    """Let torch compute one operator with ``threads`` threads. Raises ValueError below 1."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def probe_machine() -> MachineFacts:
    """What this process may use now: cores by affinity and CPU quota, free memory, bfloat16, GPUs."""
    flags, name = _processor()
    return MachineFacts(
        cores=usable_cores(),
        memory_bytes=available_memory(),
        cpu_bfloat16=bool(_BFLOAT16_FLAGS & flags),
        cuda=tuple(_cuda_devices()),
        processor=name,
    )


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may run on: its affinity, and no more than the container's CPU quota, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = quota_file.read_text().split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def available_memory(limits: Iterable[tuple[str, str]] = _CGROUP_LIMITS) -> int:
    """Bytes this process can still take: free memory of the machine, and no more than the container's limit leaves.

    ``limits`` are pairs of files (limit, usage) of control groups, version 2 and 1. File cache that the kernel can
    drop counts as free, as it does for the machine.
    """
    available = int(psutil.virtual_memory().available)
    for limit_file, usage_file in limits:
        try:
            limit = Path(limit_file).read_text().strip()
            if limit != "max":
                used = int(Path(usage_file).read_text()) - _droppable_cache(Path(usage_file).with_name("memory.stat"))
                available = min(available, max(0, int(limit) - used))
        except (OSError, ValueError):
            continue
    return available


def _droppable_cache(statistics: Path) -> int:
    try:
        fields = dict(line.split() for line in statistics.read_text().splitlines())
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def _processor() -> tuple[frozenset[str], str]:
    """Feature flags and name of the processor, from Linux; empty flags elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset(), platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = frozenset(fields.get("flags", fields.get("Features", "")).split())
    return flags, fields.get("model name") or platform.machine()


def _cuda_devices() -> Iterable[CudaDevice]:
    if not torch.cuda.is_available():
        return
    for index in range(torch.cuda.device_count()):
        free, _ = torch.cuda.mem_get_info(index)
        properties = torch.cuda.get_device_properties(index)
        yield CudaDevice(properties.name, int(free), (properties.major, properties.minor) >= (8, 0))

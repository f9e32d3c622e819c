"""``run.json``: everything needed to say what a run was, and to go on with it."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

from posttrain.rundir.files import DamagedFileError, read_json_object, write_json
from posttrain.settings.resolve import Choice

SCHEMA_VERSION = 1

_R = TypeVar("_R")

PACKAGES: tuple[str, ...] = (
    "posttrain",
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "pydantic",
    "reasoning-gym",
    "math-verify",
    "datasets",
)
"""Distributions whose versions can change a result."""


@dataclass(frozen=True, slots=True)
class PolicyIdentity:
    """One row of the policy-identity table: what an optimisation does to the question "which policy is this?".

    ``sampled_by`` says which policy really sampled, ``logprob_trusted`` whether the recorded log-prob is that
    policy's, ``same_objective`` whether the advantage still means the same objective, ``corrected_by`` what
    corrects the difference (empty when nothing has to).
    """

    optimisation: str
    on: bool
    sampled_by: str
    logprob_trusted: bool
    same_objective: bool
    corrected_by: str


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Where an attempt ran. Memory in bytes; ``devices`` names accelerators, empty on a CPU."""

    host: str = ""
    system: str = ""
    python: str = ""
    processor: str = ""
    cores: int = 0
    memory: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What must be the same for a resumed run to compute the same numbers."""

    device: str
    threads: int
    compute_dtype: str
    master_dtype: str
    micro_batch_tokens: int


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One process that worked on the run. Attempts count from 1; times are seconds since the epoch.

    ``resumed_from_step`` is the step of the checkpoint it continued from; ``None`` means from the beginning.
    ``outcome`` is ``running`` until it ends as ``finished``, ``interrupted``, ``stopped`` or ``failed``; a
    process that was killed stays ``running``.
    """

    attempt: int
    started: float
    resumed_from_step: int | None = None
    ended: float | None = None
    outcome: str = "running"
    detail: str = ""
    machine: MachineInfo = field(default_factory=MachineInfo)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of ``run.json``. ``settings`` is the resolved settings tree, JSON-compatible."""

    name: str
    seed: int
    created: float
    settings: Mapping[str, Any]
    plan: ExecutionPlan
    choices: Sequence[Choice] = ()
    policy_identity: Sequence[PolicyIdentity] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    attempts: Sequence[AttemptInfo] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON-compatible facts for people, such as parameter counts and bytes per model copy."""
    schema_version: int = SCHEMA_VERSION

    def with_attempt(self, attempt: AttemptInfo) -> RunInfo:
        """A copy with one more attempt, or with the attempt of that number replaced."""
        others = [a for a in self.attempts if a.attempt != attempt.attempt]
        return replace(self, attempts=tuple(sorted([*others, attempt], key=lambda a: a.attempt)))


def machine_info(devices: Sequence[str] = ()) -> MachineInfo:
    """Describe this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return MachineInfo(
        host=socket.gethostname(),
        system=platform.platform(),
        python=platform.python_version(),
        processor=_processor_name(),
        cores=cores,
        memory=int(psutil.virtual_memory().total),
        devices=tuple(devices),
    )


def package_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Installed versions, read from package metadata without importing anything. Missing packages are left out."""
    versions: dict[str, str] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_run_info(path: Path, info: RunInfo) -> None:
    """Write ``run.json`` atomically."""
    write_json(path, asdict(info))


def read_run_info(path: Path) -> RunInfo:
    """Read ``run.json``; unknown keys are ignored. Raises DamagedFileError on a missing or contradictory file."""
    data = read_json_object(path)
    version = data.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DamagedFileError(path, f"has schema version {version!r}; this version reads up to {SCHEMA_VERSION}")
    try:
        data["plan"] = _record(ExecutionPlan, data["plan"])
        data["choices"] = tuple(_record(Choice, row) for row in data.get("choices", ()))
        data["policy_identity"] = tuple(_record(PolicyIdentity, row) for row in data.get("policy_identity", ()))
        data["attempts"] = tuple(_attempt(row) for row in data.get("attempts", ()))
        return _record(RunInfo, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(path, f"does not describe a run ({type(error).__name__}: {error})") from error


def _attempt(row: Mapping[str, Any]) -> AttemptInfo:
    machine = dict(row.get("machine", {}))
    machine["devices"] = tuple(machine.get("devices", ()))
    resumed = row.get("resumed_from_step")
    numbers = {
        "attempt": int(row["attempt"]),
        "started": float(row["started"]),
        "resumed_from_step": None if resumed is None else int(resumed),
    }
    return _record(AttemptInfo, {**row, **numbers, "machine": _record(MachineInfo, machine)})


def _record(kind: type[_R], row: Mapping[str, Any]) -> _R:
    known = {f.name for f in fields(cast("Any", kind))}
    return kind(**{key: value for key, value in row.items() if key in known})


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

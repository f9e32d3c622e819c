"""Who names the cause of a failing run first: posttrain, rl-doctor or rlprobe?

Logs with a known truth: real small runs of a trainer that is not ours (tests/injection), and the simulators of both
peers. Right first: the first finding of severity warn or more bears a name that is right for the fault. The onset error
is a share of the run; a fault that is not named costs the whole run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from harness.doctors import Ask, peer, posttrain
from harness.labelled import LAYERS, Said, Score, Truth, Verdict, alike, labelled, names, score
from harness.record import RESULTS, Record, Table, rival_python, versions_here, versions_of
from harness.sides import HERE, ROOT, Side, offline_environment

TOOLS = ("posttrain", "rl-doctor", "rlprobe")
NAMES = HERE / "diagnosis_names.toml"
CACHE = ROOT / ".cache" / "diagnosis"
INDEPENDENT = "independent"
QUICK = ("clean.parity-dapo", "grader_rejects_all.third.3", "sampler_temperature.third.3")


def main() -> None:
    """Make the logs that are missing, ask every tool about each, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("tuning", "scored"), default="scored", help="which independent runs")
    parser.add_argument("--runs", type=Path, help="their folder (default: under .cache); made if missing")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--logs", nargs="+", choices=("trl", "verl"), default=["trl"], help="formats of the same runs")
    parser.add_argument("--peers-python", help="default: .venv-peers/bin/python (scripts/diagnosis_peers.sh)")
    parser.add_argument("--quick", action="store_true", help="three runs, posttrain alone: shows that it works")
    parser.add_argument("--out", type=Path, help="JSON file (default: results/diagnosis.json, with --quick none)")
    options = parser.parse_args()
    if options.quick:
        options.tools, options.runs, options.split = ["posttrain"], CACHE / "quick", "tuning"
    elif options.out is None:
        options.out = RESULTS / "diagnosis.json"
    options.runs = options.runs or CACHE / (INDEPENDENT if options.split == "tuning" else options.split)
    make_runs(options.runs, options.split, QUICK if options.quick else ())
    python = rival_python(options, options.peers_python, ".venv-peers", "scripts/diagnosis_peers.sh")
    versions = {"posttrain": versions_here()}
    if python:
        with Side("diagnosis_peers", {}, threads=1, python=python) as side:
            simulated = CACHE / "simulated"
            if not simulated.exists():
                side.do("simulate", out=str(simulated.with_suffix(".part")))
                simulated.with_suffix(".part").rename(simulated)
            asks: dict[str, Ask] = {"posttrain": posttrain}
            asks |= {tool: peer(side, tool) for tool in TOOLS[1:]}
            truths = labelled([options.runs, simulated])
            verdicts = ask_all({tool: asks[tool] for tool in options.tools}, truths, options.logs)
        versions["peers"] = versions_of(python)
    else:
        verdicts = ask_all({"posttrain": posttrain}, labelled([options.runs]), options.logs)
    report(options, versions, verdicts).finish(options.out)


def make_runs(directory: Path, split: str, only: Sequence[str]) -> None:
    """The independent runs that are not there yet, on all cores; what is due of scored ones is decided by rule."""
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "tests.injection.independent.run", "--out", str(directory), "--split", split]
    command += ["--only", *only] if only else []
    environment = {**offline_environment(1), "PYTHONPATH": str(ROOT)}
    parts = [subprocess.Popen([*command, "--share", f"{i}/{cores}"], cwd=ROOT, env=environment) for i in range(cores)]
    failed = [part for part in parts if part.wait()]
    if failed:
        raise SystemExit(f"{' '.join(command)} failed")
    if split == "scored":
        decide = [sys.executable, "-m", "tests.injection.independent.expect", str(directory)]
        subprocess.run(decide, cwd=ROOT, env=environment, check=True)


def ask_all(asks: Mapping[str, Ask], truths: Sequence[Truth], formats: Sequence[str]) -> list[Verdict]:
    """Every tool about every log. rlprobe reads its own recording where the run has one."""
    right, like = names(NAMES), alike(NAMES)
    verdicts = []
    for truth in truths:
        for tool, ask in asks.items():
            logs = ["rlprobe"] if tool == "rlprobe" and "rlprobe" in truth.logs else formats
            for log in logs:
                if log not in truth.logs:
                    continue
                said: list[Said] = []
                failure = ""
                try:
                    said = ask(truth.logs[log])
                except RuntimeError as error:
                    failure = str(error)
                accepted = right[tool].get(truth.fault, frozenset())
                others = frozenset().union(*(right[tool][fault] for fault in like.get(truth.fault, frozenset())))
                verdicts.append(Verdict(tool, log, truth, tuple(said), accepted, others, failure))
        print(f"{truth.name}", flush=True)
    return verdicts


def report(options: argparse.Namespace, versions: dict[str, dict[str, str]], verdicts: Sequence[Verdict]) -> Record:
    """A table of each source, one of each fault, and what was missed."""
    sources = list(dict.fromkeys(v.truth.source for v in verdicts))
    runs = {source: len({v.truth.name for v in verdicts if v.truth.source == source}) for source in sources}
    settings = {"runs": runs, "split": options.split, "logs": options.logs, "names": "benchmarks/diagnosis_names.toml"}
    record = Record("diagnosis", (__doc__ or "").strip(), settings, versions)
    for source in sources:
        rows = [
            (tool, *_cells(score([v for v in verdicts if v.tool == tool and v.truth.source == source])))
            for tool in options.tools
        ]
        record.tables.append(
            Table(
                "Real runs of an independent trainer" if source == INDEPENDENT else f"Simulated by {source}",
                (
                    "tool",
                    "right cause first",
                    "or one that the log cannot tell from it",
                    "named at all",
                    "nothing said",
                    "onset error, median (mean)",
                    "warned on clean",
                    "warned where nothing is broken",
                    "no answer",
                ),
                rows,
            )
        )
    record.tables.append(_by_fault(options.tools, [v for v in verdicts if v.truth.source == INDEPENDENT]))
    record.notes += [
        "rl-doctor gives no onset; the first of twenty prefixes of the log from which on it warned stands for it.",
        "rlprobe reads recordings of its own: logs were recorded row by row with its own table of TRL's keys, without "
        "samples, which a log does not have. Its simulated runs are read as it recorded them, and the others from a "
        "log in TRL's names; three of its pathologies have no such name and count nowhere.",
        "Names that count as right were written down from the tools' documentation before anything was scored, to "
        "the family for the peers and to the cause for posttrain.",
        "Three causes that the map did not have at the first scoring (group_members_alike, critic_diverges "
        "and tasks_exhausted) got their places in the table before detectors were frozen for this one.",
        "The column of faults that a log cannot tell apart was added after the first scoring; its groups stand at the "
        "head of benchmarks/diagnosis_names.toml.",
    ]
    record.measurements = {
        "scores": {
            source: {
                tool: asdict(score([v for v in verdicts if v.tool == tool and v.truth.source == source]))
                for tool in options.tools
            }
            for source in sources
        },
        "layers": _layers([v for v in verdicts if v.tool == "posttrain" and v.truth.source == INDEPENDENT]),
        "verdicts": [_plain(v) for v in verdicts],
    }
    return record


def _cells(s: Score) -> tuple[str, ...]:
    def share(part: int, whole: int) -> str:
        return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "none there"

    error = f"{100 * s.onset_error_median:.0f} % ({100 * s.onset_error_mean:.0f} %)"
    return (
        share(s.right_first, s.faulty),
        share(s.alike_first, s.faulty),
        share(s.right_anywhere, s.faulty),
        share(s.silent, s.faulty),
        error if s.onset_error_median == s.onset_error_median else "not known",
        share(s.clean_warned, s.clean),
        share(s.harmless_warned, s.harmless),
        str(s.failed),
    )


def _by_fault(tools: Sequence[str], verdicts: Sequence[Verdict]) -> Table:
    """Right first by fault: how many of the runs where a finding (or information) is due."""
    due = [v for v in verdicts if v.truth.fault and v.truth.expected in ("finding", "info")]
    rows = []
    for fault in dict.fromkeys(v.truth.fault for v in due):
        counts = []
        for tool in tools:
            of = [v for v in due if v.truth.fault == fault and v.tool == tool]
            counts.append(f"{sum(v.right_first for v in of)} of {len(of)}")
        rows.append((fault, *counts))
    return Table("Right cause first, by fault, in the independent runs", ("fault", *tools), sorted(rows))


def _layers(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How often the first warning names the layer that the cause is in, whatever cause it names there."""
    due = [v for v in verdicts if v.truth.fault and v.truth.expected == "finding"]
    right = sum(bool(v.serious) and v.serious[0].cause_layer == LAYERS.index(v.truth.cause_layer) + 1 for v in due)
    return {"runs": len(due), "right_layer_first": right}


def _plain(v: Verdict) -> dict[str, object]:
    said = [[s.name, s.severity, s.onset] for s in v.said]
    return {
        "tool": v.tool,
        "run": v.truth.name,
        "log": v.log,
        "fault": v.truth.fault or None,
        "expected": v.truth.expected,
        "onset": v.truth.onset or None,
        "right_first": v.right_first,
        "alike_first": v.alike_first,
        "onset_error": v.onset_error,
        "said": said,
        **({"failure": v.failure} if v.failure else {}),
    }


if __name__ == "__main__":
    main()

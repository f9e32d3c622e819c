"""What do the tools say of real logs as they grow? ``scripts/judge_runlogs.py FOLDER`` asks them about every prefix.

What is due of each log stands in judge_runlogs.toml. Results go to benchmarks/results/runlogs.json; nothing of the logs
does. The peers need scripts/diagnosis_peers.sh; posttrain alone: ``--tools posttrain``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

from harness.doctors import Ask, peer, posttrain  # noqa: E402  (the harness lies beside the benchmarks)
from harness.labelled import SEVERITIES, Said  # noqa: E402
from harness.record import RESULTS, Record, Table, rival_python, versions_here, versions_of  # noqa: E402
from harness.runlogs import read_rows, write_until  # noqa: E402
from harness.sides import Side  # noqa: E402

TOOLS = ("posttrain", "rl-doctor", "rlprobe")
FIRST_SHARE = 0.05
PREFIXES = 40


@dataclass(frozen=True, slots=True)
class Check:
    """What is due of the prefixes of a log that end between two steps."""

    log: str
    what: str
    due: str
    first: int
    last: int
    severity: str
    names: tuple[str, ...]
    ignored: tuple[str, ...]

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Check:
        """From a table of the TOML file."""
        return cls(
            entry["log"],
            entry["what"],
            entry["due"],
            entry.get("from", 0),
            entry["to"],
            entry.get("severity", "warn"),
            tuple(entry.get("names", ())),
            tuple(entry.get("except", ())),
        )


Answers = Mapping[int, Sequence[Said] | str]  # by last step of the prefix; a text is why there is no answer


def main() -> None:
    """Ask, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the logs that judge_runlogs.toml names")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--peers-python", help="default: .venv-peers/bin/python (scripts/diagnosis_peers.sh)")
    parser.add_argument("--out", type=Path, default=RESULTS / "runlogs.json")
    options = parser.parse_args()
    options.quick = False
    checks = [Check.read(entry) for entry in tomllib.loads((HERE / "judge_runlogs.toml").read_text())["check"]]
    logs = list(dict.fromkeys(check.log for check in checks))
    missing = [log for log in logs if not (options.folder / log).exists()]
    if missing:
        raise SystemExit(f"{options.folder} does not have {', '.join(missing)}")
    versions = {"posttrain": versions_here()}
    with ExitStack() as stack:
        asks: dict[str, Ask] = {"posttrain": posttrain}
        if set(options.tools) - {"posttrain"}:
            python = rival_python(options, options.peers_python, ".venv-peers", "scripts/diagnosis_peers.sh")
            side = stack.enter_context(Side("diagnosis_peers", {}, threads=1, python=python))
            asks |= {tool: peer(side, tool, onsets=False) for tool in TOOLS[1:]}
            versions["peers"] = versions_of(python)
        answers = {
            (tool, log): over_prefixes(tool, asks[tool], options.folder / log) for log in logs for tool in options.tools
        }
    report(options, versions, checks, answers).finish(options.out)


def over_prefixes(tool: str, ask: Ask, path: Path) -> Answers:
    """Answers about the log cut off at up to ``PREFIXES`` of its steps, the last among them."""
    steps = sorted({int(row["step"]) for row in read_rows(path)})
    steps = [step for step in steps if step >= FIRST_SHARE * steps[-1]]
    stride = -(-len(steps) // PREFIXES)
    answers: dict[int, Sequence[Said] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in steps[::-1][::stride][::-1]:
            try:
                answers[step] = ask(write_until(path, step, Path(folder)))
            except RuntimeError as error:
                answers[step] = str(error)
    print(f"{tool}: {path.name}", flush=True)
    return answers


def passes(check: Check, answers: Answers) -> bool:
    """Whether the tool said what is due."""
    seen = [said for step, said in answers.items() if check.first <= step <= check.last]
    if any(isinstance(said, str) for said in seen):
        return False
    alarms = [any(s.serious and not _is(s, check.ignored) for s in said) for said in seen if not isinstance(said, str)]
    match check.due:
        case "quiet":
            return not any(alarms)
        case "not_quiet":
            return all(alarms)
        case "named":
            return any(_named(check, said) for said in seen)
        case "read":
            return True
        case other:
            raise SystemExit(f"judge_runlogs.toml: due = {other!r} is none of quiet, not_quiet, named, read")


def first_step(check: Check, answers: Answers) -> int | None:
    """Last step of the first prefix of which a name (any alarm, where none is named) was said."""
    for step, said in answers.items():
        if isinstance(said, str) or step < check.first:
            continue
        if _named(check, said) if check.names else any(s.serious and not _is(s, check.ignored) for s in said):
            return step
    return None


def _named(check: Check, said: Sequence[Said] | str) -> bool:
    least = SEVERITIES.index(check.severity)
    return any(not isinstance(s, str) and SEVERITIES.index(s.severity) >= least and _is(s, check.names) for s in said)


def _is(said: Said, names: Iterable[str]) -> bool:
    """Whether the finding has one of the names, with its words in the text."""
    for name in names:
        plain, _, words = name.partition(":")
        if plain in (said.name, said.symptom) and words in said.text:
            return True
    return False


def report(
    options: argparse.Namespace,
    versions: dict[str, dict[str, str]],
    checks: Sequence[Check],
    answers: Mapping[tuple[str, str], Answers],
) -> Record:
    """One row a check; the verdicts over the prefixes as measurements."""
    settings = {"expectations": "scripts/judge_runlogs.toml", "prefixes": PREFIXES}
    record = Record("runlogs", (__doc__ or "").strip(), settings, versions)
    rows = []
    for check in checks:
        cells = []
        for tool in options.tools:
            found = answers[tool, check.log]
            step = first_step(check, found) if check.due != "read" else None
            when = f", first at {step}" if step is not None else ""
            cells.append(("yes" if passes(check, found) else "NO") + when)
        rows.append((check.log, check.what, *cells))
    record.tables.append(Table("What is due of real logs as they grow", ("log", "due", *options.tools), rows))
    record.notes.append(
        "what posttrain prints under a finding as its consequence counts as said; before that was so, one check "
        "(values that are not finite) failed"
    )
    record.notes.append(
        "not a blind test of posttrain: the authors of its detectors had read these four logs; thresholds were set on "
        "other data with their shapes in view"
    )
    record.measurements = {
        "passed": {tool: sum(passes(check, answers[tool, check.log]) for check in checks) for tool in options.tools}
        | {"checks": len(checks)},
        "said": {
            log: {
                tool: {str(step): _plain(said) for step, said in answers[tool, log].items()} for tool in options.tools
            }
            for log in dict.fromkeys(check.log for check in checks)
        },
    }
    return record


def _plain(said: Sequence[Said] | str) -> object:
    return said if isinstance(said, str) else [[s.name, s.symptom, s.severity, s.onset] for s in said]


if __name__ == "__main__":
    main()

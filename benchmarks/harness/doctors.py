"""The tools that diagnose a log, behind one call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.labelled import Said
from harness.sides import ROOT, Side, offline_environment

Ask = Callable[[Path], list[Said]]


def posttrain(path: Path) -> list[Said]:
    """``posttrain doctor PATH --json``, as a user calls it."""
    command = [str(Path(sys.executable).parent / "posttrain"), "doctor", str(path), "--json", "--fail-on", "off"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=offline_environment(1))
    if done.returncode != 0:
        raise RuntimeError(f"posttrain doctor ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    # What follows from a finding is printed under it, so it counts as said after it.
    return [
        Said(f["cause"], f["severity"], f["onset_step"], f["symptom"], f["cause_layer"], f["summary"])
        for root in found
        for f in (root, *root["consequences"])
    ]


def peer(side: Side, tool: str, onsets: bool = True) -> Ask:
    """A tool of ``sides/diagnosis_peers.py``."""

    def ask(path: Path) -> list[Said]:
        answer = side.do(tool, path=str(path), onsets=onsets)
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return [Said(f["name"], f["severity"], f["onset_step"], text=f["text"]) for f in answer["findings"]]

    return ask

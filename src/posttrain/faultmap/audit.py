"""Runs audit checks: only the modules of the checks that are asked for are loaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from posttrain.errors import InputError
from posttrain.settings.tree import Settings
from posttrain.signals.audit import CHECKS, AuditCheck, AuditFinding, AuditFunction, AuditOptions, AuditOutcome
from posttrain.signals.severity import Severity

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the checks said, by name of the check."""

    outcomes: Mapping[str, AuditOutcome]

    def findings(self) -> list[tuple[AuditCheck, AuditFinding]]:
        """All findings, worst first, then in the order of the checks."""
        found = [(CHECKS[name], finding) for name, outcome in self.outcomes.items() for finding in outcome.findings]
        return sorted(found, key=lambda pair: -pair[1].severity)

    def exit_code(self, fail_on: Severity) -> int:
        """1 if a finding is at or above ``fail_on``, else 0."""
        return int(any(finding.severity >= fail_on for _, finding in self.findings()))

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form; ``docs/how-to/stress-a-reward.md`` describes it."""
        return {
            "format_version": FORMAT_VERSION,
            "findings": [
                {"check": check.name, "layer": int(check.layer), **asdict(finding), "severity": str(finding.severity)}
                for check, finding in self.findings()
            ],
            "checks": {name: dict(outcome.data) for name, outcome in self.outcomes.items()},
        }


def chosen_checks(only: Sequence[str]) -> list[AuditCheck]:
    """The checks of these names, or all. Raises InputError for a name that no check has."""
    for name in only:
        if name not in CHECKS:
            raise InputError("--only", name, "is not a check", f"There are: {', '.join(CHECKS)}.")
    return [check for check in CHECKS.values() if not only or check.name in only]


def run_audit(settings: Settings, only: Sequence[str] = (), options: AuditOptions | None = None) -> AuditReport:
    """Run the named checks, or all, in the order of the layers. Raises InputError where one cannot run."""
    outcomes: dict[str, AuditOutcome] = {}
    for check in chosen_checks(only):
        outcomes[check.name] = _load(check)(settings, options or AuditOptions())
    return AuditReport(outcomes)


def _load(check: AuditCheck) -> AuditFunction:
    module, _, function = check.target.partition(":")
    return cast(AuditFunction, getattr(importlib.import_module(module), function))

"""Checks that run before a run: what one says, and which there are.

A check lives in the layer that it checks and is named here by import path, so that listing the checks loads none
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from posttrain.settings.tree import Settings
from posttrain.signals.severity import Severity
from posttrain.signals.signal import Layer


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How much a check may look at: ``tasks`` is how many tasks of each environment it samples."""

    tasks: int = 12


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Something a check found.

    ``subject`` is what it is about (``environments.NAME``), ``name`` the kind of finding in words that do not change
    with the numbers, ``summary`` one sentence with the numbers, ``fix`` what to do. ``evidence`` is JSON-compatible.
    Texts may hold what a hostile completion says: whoever prints them makes them harmless first.
    """

    subject: str
    name: str
    severity: Severity
    summary: str
    fix: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditTable:
    """Numbers behind the findings, as text for people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What one check says. ``data`` is everything it measured, JSON-compatible."""

    findings: tuple[AuditFinding, ...]
    tables: tuple[AuditTable, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


class AuditFunction(Protocol):
    """The body of a check. Raises InputError where the settings cannot be checked."""

    def __call__(self, settings: Settings, options: AuditOptions) -> AuditOutcome:
        """Run the check."""
        ...


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One check: ``target`` is ``package.module:function``, an AuditFunction."""

    name: str
    layer: Layer
    description: str
    target: str


CHECKS: Mapping[str, AuditCheck] = MappingProxyType(
    {
        check.name: check
        for check in (
            AuditCheck(
                "environment",
                Layer.REWARD,
                "send every reward what no honest policy sends, and right answers in many spellings",
                "posttrain.environment.stress.audit:audit_environments",
            ),
        )
    }
)
"""Every check by name, in the order in which to look."""

"""A diagnosis as plain JSON data, for scripts."""

from __future__ import annotations

from typing import Any

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.diagnosis import Diagnosis, LayerRow, Rooted, Unjudged
from posttrain.faultmap.finding import Candidate, Finding, Observation
from posttrain.signals.framework import Framework

SCHEMA_VERSION = 1


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """What ``posttrain doctor --json`` prints; the fields are described in docs/how-to/doctor.md.

    Numbers that are not finite are left to the writer, which has no way to spell them.
    """
    history = diagnosis.history
    ends = [(int(c.steps[0]), int(c.steps[-1])) for c in history.courses.values() if len(c)]
    return {
        "schema_version": SCHEMA_VERSION,
        "source": history.source,
        "framework": history.framework.value,
        "first_step": min((first for first, _ in ends), default=None),
        "last_step": max((last for _, last in ends), default=None),
        "severity": None if diagnosis.severity is None else str(diagnosis.severity),
        "rows": [_row(row) for row in diagnosis.rows],
        "findings": [_rooted(rooted, history.framework) for rooted in diagnosis.findings],
        "unjudged": [_unjudged(one) for one in diagnosis.unjudged],
        "failures": [{"detector": f.detector, "problem": f.problem} for f in diagnosis.failures],
        "problems": list(history.problems),
        "notes": list(history.notes),
        "unmapped": [{"key": one.key, "points": one.points} for one in history.unmapped],
    }


def finding_json(finding: Finding, framework: Framework) -> dict[str, Any]:
    """One finding with what the map knows about its symptom and cause."""
    cause, symptom = CAUSES[finding.cause], SYMPTOMS[finding.symptom]
    return {
        "detector": finding.detector,
        "symptom": finding.symptom,
        "symptom_title": symptom.title,
        "symptom_layer": int(symptom.layer),
        "cause": finding.cause,
        "cause_title": cause.title,
        "cause_layer": int(cause.layer),
        "interface_layer": None if cause.other_layer is None else int(cause.other_layer),
        "benign": cause.benign,
        "severity": str(finding.severity),
        "confidence": finding.confidence,
        "onset_step": finding.onset_step,
        "last_step": finding.last_step,
        "summary": finding.summary,
        "evidence": [_observation(one) for one in finding.evidence],
        "differential": [_candidate(one) for one in finding.differential],
        "check": cause.check,
        "remedy": cause.remedy,
        "remedy_in_framework": cause.remedies.get(framework),
    }


def _rooted(rooted: Rooted, framework: Framework) -> dict[str, Any]:
    consequences = [finding_json(one, framework) for one in rooted.consequences]
    return finding_json(rooted.finding, framework) | {"consequences": consequences}


def _observation(one: Observation) -> dict[str, Any]:
    return {"signal": one.signal, "step": one.step, "value": one.value, "shows": one.shows}


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "cause": one.cause,
        "cause_layer": int(CAUSES[one.cause].layer),
        "verdict": one.verdict.value,
        "reason": one.reason,
        "log_this": list(one.log_this),
    }


def _row(row: LayerRow) -> dict[str, Any]:
    return {
        "layer": int(row.layer),
        "name": row.layer.name.lower(),
        "state": row.state.value,
        "worst": None if row.worst is None else row.worst.detector,
        "unjudged": [one.detector.name for one in row.unjudged],
    }


def _unjudged(one: Unjudged) -> dict[str, Any]:
    return {"detector": one.detector.name, "symptom": one.detector.symptom, "missing": [list(n) for n in one.missing]}

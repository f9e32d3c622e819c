"""The evaluation summary of a run as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from posttrain.orchestration.evaluation import Summary
from posttrain.orchestration.gain import Gain, compare_cost

SCHEMA_VERSION = 1


def evaluation_report(
    before: Mapping[str, Summary], after: Mapping[str, Summary], gains: Mapping[str, Gain]
) -> dict[str, Any]:
    """Per environment: both summaries, the paired gain, the verdict, and success against generated tokens.

    An environment evaluated only once has only that summary. Strict JSON: no NaN, keys are strings.
    """
    environments: dict[str, Any] = {}
    for name in sorted({*before, *after}):
        entry: dict[str, Any] = {}
        base, trained, gain = before.get(name), after.get(name), gains.get(name)
        if base is not None:
            entry["before"] = base.to_json()
        if trained is not None:
            entry["after"] = trained.to_json()
        if gain is not None:
            data = gain.to_json()
            entry["gain"] = data["differences"]
            entry["verdict"] = data["verdict"]
            entry["decomposition"] = data["decomposition"]
            entry["paired_tasks"] = data["tasks"]
            entry["constant_answer_success"] = data["constant_answer_success"]
        entry["cost_curve"] = {
            side: [point.to_json() for point in summary.cost_curve]
            for side, summary in (("base", base), ("trained", trained))
            if summary is not None
        }
        if base is not None and trained is not None and base.cost_curve and trained.cost_curve:
            entry["cost"] = asdict(compare_cost(base.cost_curve, trained.cost_curve))
        environments[name] = entry
    return {"schema_version": SCHEMA_VERSION, "environments": environments}

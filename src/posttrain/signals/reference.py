"""Writes docs/metrics.md from the registry: ``python -m posttrain.signals.reference [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from posttrain.signals.registry import SIGNALS
from posttrain.signals.signal import HealthyRange, Layer, Reduction, Signal

DEFAULT_PATH = Path("docs/metrics.md")

_HEADINGS = {
    Layer.REWARD: "Layer 1: is the reward right?",
    Layer.POLICY: "Layer 2: is the update controlled?",
    Layer.LOGPROBS: "Layer 3: are sampler and trainer numerically the same policy?",
    Layer.ROLLOUT: "Layer 4: what does the engine do?",
    Layer.PARALLEL: "Layer 5: memory and parallelism",
    Layer.SCHEDULE: "Layer 6: time, order and age of the data",
}

_REDUCTIONS = {
    Reduction.MEAN: "mean, weighted by counts",
    Reduction.SUM: "sum",
    Reduction.MAX: "maximum",
    Reduction.MIN: "minimum",
    Reduction.LAST: "computed once over the whole step; the newest value counts",
    Reduction.SHARE: "share of yes/no facts, weighted by counts",
}

_INTRODUCTION = """\
# Metrics

Every value in `metrics.jsonl`, TensorBoard and the other trackers. This page is generated from the registry
(`python -m posttrain.signals.reference`); a name that is not here is refused when it is written.

Parts in braces are parameters: `reward/part/{part}/mean` is written as `reward/part/correct/mean`.
Layers say where a *symptom* shows. Its cause often lies in another layer, so look from layer 1 upwards.

*Combines by* says how values of several micro-batches, processes or steps become one. Means and shares carry the
number of observations they summarise (`counts` in `metrics.jsonl`), so that no mean of means arises.

A *healthy* range is no alarm by itself. It holds only for what it assumes, and its evidence is graded:
`derived` follows from the definition, `measured` was seen in runs with and without the failure, `proposed` is a rule
of thumb that needs a second symptom.
"""


def metrics_reference() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for layer, heading in _HEADINGS.items():
        parts.append(f"## {heading}\n")
        parts.extend(_entry(signal) for signal in SIGNALS.values() if signal.layer is layer)
    return "\n".join(parts)


def _entry(signal: Signal) -> str:
    lines = [f"### `{signal.name}`", "", signal.definition, ""]
    lines.append(f"- Unit: {signal.unit}. Combines by: {_REDUCTIONS[signal.reduction]}.")
    if signal.healthy is not None:
        lines.append(f"- Healthy: {_range(signal.healthy)}")
    if signal.assumes:
        lines.append(f"- Note: {signal.assumes}")
    if signal.aliases:
        lines.append(f"- In other logs: {_code(signal.aliases)}.")
    return "\n".join([*lines, ""])


def _range(healthy: HealthyRange) -> str:
    if healthy.low is None:
        bounds = f"at most {healthy.high:g}"
    elif healthy.high is None:
        bounds = f"at least {healthy.low:g}"
    else:
        bounds = f"{healthy.low:g} to {healthy.high:g}"
    return f"{bounds} ({healthy.evidence}: {healthy.source}). Assumes: {healthy.assumes}"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/metrics.md."""
    path = Path(arguments[0]) if arguments else DEFAULT_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(metrics_reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

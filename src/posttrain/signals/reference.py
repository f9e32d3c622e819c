"""Writes docs/metrics.md from the registry: ``python -m posttrain.signals.reference [FILE]``."""

from __future__ import annotations

import sys
from pathlib import Path

from posttrain.signals.aliases import ALIASES, NAMES, aliases_of
from posttrain.signals.framework import Alias, Framework
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

Entries marked *not written by posttrain* are what other frameworks log, or what `posttrain doctor` derives from a log;
they are in the registry so that every log is read in the same terms. [Names in other logs](#names-in-other-logs) has
the keys of each framework.

*Combines by* says how values of several micro-batches, processes or steps become one. Means and shares carry the
number of observations they summarise (`counts` in `metrics.jsonl`), so that no mean of means arises.

A *healthy* range is no alarm by itself. It holds only for what it assumes, and its evidence is graded:
`derived` follows from the definition, `measured` was seen in runs with and without the failure, `proposed` is a rule
of thumb that needs a second symptom.
"""

_NAMES_INTRODUCTION = """\
## Names in other logs

What `posttrain doctor` takes a key for. Where two keys of one log stand for one signal, the upper one counts. A
parameter in braces stands for any text. Times on a value, and a sign turned, are applied on reading.
"""

_DOCUMENTED = tuple(f for f in Framework if f not in (Framework.POSTTRAIN, Framework.PLAIN))


def metrics_reference() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for layer, heading in _HEADINGS.items():
        parts.append(f"## {heading}\n")
        parts.extend(_entry(signal) for signal in SIGNALS.values() if signal.layer is layer)
    return "\n".join([*parts, _other_names()])


def _entry(signal: Signal) -> str:
    lines = [f"### `{signal.name}`", "", signal.definition, ""]
    if not signal.written:
        lines.append("- Not written by posttrain.")
    lines.append(f"- Unit: {signal.unit}. Combines by: {_REDUCTIONS[signal.reduction]}.")
    if signal.healthy is not None:
        lines.append(f"- Healthy: {_range(signal.healthy)}")
    if signal.assumes:
        lines.append(f"- Note: {signal.assumes}")
    elsewhere = [
        f"{NAMES[framework]} `{found[0].key}`"
        for framework in _DOCUMENTED
        if (found := aliases_of(framework, signal.name))
    ]
    if elsewhere:
        lines.append(f"- In other logs: {'; '.join(elsewhere)}.")
    return "\n".join([*lines, ""])


def _range(healthy: HealthyRange) -> str:
    if healthy.low is None:
        bounds = f"at most {healthy.high:g}"
    elif healthy.high is None:
        bounds = f"at least {healthy.low:g}"
    else:
        bounds = f"{healthy.low:g} to {healthy.high:g}"
    return f"{bounds} ({healthy.evidence}: {healthy.source}). Assumes: {healthy.assumes}"


def _other_names() -> str:
    parts = [_NAMES_INTRODUCTION]
    for framework in _DOCUMENTED:
        parts.append(f"### {NAMES[framework]}\n")
        parts.append("| Key | Signal | How it differs, or what must be set |\n|---|---|---|")
        parts.extend(_row(alias) for alias in ALIASES[framework])
        parts.append("")
    return "\n".join(parts)


def _row(alias: Alias) -> str:
    remarks = [alias.caveat] if alias.caveat else []
    if alias.scale != 1.0:
        remarks.append(f"Times {alias.scale:g}.")
    if alias.setting:
        remarks.append(f"Needs: {alias.setting}.")
    cells = (f"`{alias.key}`", f"`{alias.signal}`", " ".join(remarks))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/metrics.md."""
    path = Path(arguments[0]) if arguments else DEFAULT_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(metrics_reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Writes docs/fault-map.md from the registries: ``python -m posttrain.faultmap.reference [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from posttrain.faultmap.cause import Cause, Symptom
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.layers import NAMES, QUESTIONS
from posttrain.faultmap.lookup import symptoms_of
from posttrain.signals.aliases import NAMES as FRAMEWORKS
from posttrain.signals.signal import Layer

DEFAULT_PATH = Path("docs/fault-map.md")

_INTRODUCTION = """\
# The fault map

What is seen in a run, what can have caused it, how to tell, and what to do. This page is generated from the registries
(`python -m posttrain.faultmap.reference`); `posttrain explain` prints the same in a terminal, and
[the doctor](how-to/doctor.md) applies it to a log.

A symptom shows in one layer; its cause often lies in another. So the candidates are listed in the order in which to
look: reward, update, log-probs, rollout, parallelism, schedule. It is an order of inspection, not of blame.
"""


def fault_map_reference() -> str:
    """The whole page as Markdown."""
    return "\n".join([_INTRODUCTION, *_overview(), *_symptoms(), *_causes(), *_detectors()])


def _overview() -> Iterator[str]:
    yield "## Symptoms by the layers of their causes\n"
    yield f"| symptom | seen in | {' | '.join(f'{int(layer)} {NAMES[layer]}' for layer in Layer)} |"
    yield "|---" * (len(Layer) + 2) + "|"
    for symptom in SYMPTOMS.values():
        cells = [", ".join(name for name in symptom.causes if CAUSES[name].layer is layer) or " " for layer in Layer]
        yield f"| {_link(symptom.name)} | {int(symptom.layer)} | {' | '.join(cells)} |"
    yield ""


def _symptoms() -> Iterator[str]:
    yield "## Symptoms\n"
    for symptom in SYMPTOMS.values():
        yield from _symptom(symptom)


def _symptom(symptom: Symptom) -> Iterator[str]:
    yield f"### {symptom.name}\n"
    yield f"*{symptom.title}*, seen in layer {int(symptom.layer)} ({NAMES[symptom.layer]}). {symptom.looks_like}\n"
    yield f"Signals: {', '.join(f'`{name}`' for name in symptom.signals)}.\n"
    yield "| layer | cause | check | remedy |"
    yield "|---|---|---|---|"
    for name in symptom.causes:
        cause = CAUSES[name]
        yield f"| {int(cause.layer)} | {_link(name)} | {_cell(cause.check)} | {_cell(cause.remedy)} |"
    found_by = [detector.name for detector in DETECTORS if detector.symptom == symptom.name]
    if found_by:
        yield f"\nLooked for by: {', '.join(f'`{name}`' for name in found_by)}."
    yield ""


def _causes() -> Iterator[str]:
    yield "## Causes\n"
    for layer in Layer:
        here = [cause for cause in CAUSES.values() if cause.layer is layer]
        if here:
            yield f"Layer {int(layer)}: {QUESTIONS[layer]}\n"
        for cause in here:
            yield from _cause(cause)


def _cause(cause: Cause) -> Iterator[str]:
    between = f", at the interface with layer {int(cause.other_layer)}" if cause.other_layer else ""
    kind = " No fault." if cause.benign else ""
    yield f"### {cause.name}\n"
    yield f"*{cause.title}*. Layer {int(cause.layer)} ({NAMES[cause.layer]}){between}.{kind}\n"
    yield f"{cause.mechanism}\n"
    yield f"- Check: {cause.check}"
    yield f"- Remedy: {cause.remedy}"
    for framework, text in cause.remedies.items():
        yield f"- {FRAMEWORKS[framework]}: {text}"
    yield f"- Seen as: {', '.join(_link(symptom.name) for symptom in symptoms_of(cause.name))}."
    yield ""


def _detectors() -> Iterator[str]:
    yield "## Detectors\n"
    yield "What each looks for, in full. Where nothing else is said, thresholds are relative to the run's own level.\n"
    for detector in DETECTORS:
        yield from _detector(detector)


def _detector(detector: Detector) -> Iterator[str]:
    yield f"### Detector {detector.name}\n"
    yield f"*{detector.title}*; symptom {_link(detector.symptom)}. {detector.pattern}\n"
    needs = "; ".join(" or ".join(f"`{name}`" for name in need) for need in detector.needs)
    yield f"- Needs: {needs}."
    if detector.sharpened_by:
        yield f"- Better with: {', '.join(f'`{name}`' for name in detector.sharpened_by)}."
    if detector.yields_to:
        names = ", ".join(f"`{name}`" for name in detector.yields_to)
        yield f"- A consequence where one of these began no later: {names}."
    if detector.silent_beside:
        names = ", ".join(f"`{name}`" for name in detector.silent_beside)
        yield f"- Says nothing where one of these warns: {names}."
    yield ""


def _link(name: str) -> str:
    return f"[{name}](#{name})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/fault-map.md."""
    path = Path(arguments[0]) if arguments else DEFAULT_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fault_map_reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

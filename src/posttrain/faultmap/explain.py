"""The map itself, printed: all of it in one table, or the part that bears a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.faultmap.cause import Cause, Symptom
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.doctor_text import grid, prose
from posttrain.faultmap.layers import QUESTIONS, numbered
from posttrain.faultmap.lookup import Entry, Key, detectors_reading, look_up, symptoms_of, symptoms_seen_in
from posttrain.faultmap.printable import one_line
from posttrain.signals.aliases import NAMES, aliases_of
from posttrain.signals.framework import Framework
from posttrain.signals.signal import HealthyRange, Layer, Signal

_LEGEND = (
    "The number before causes is their layer. One in full: posttrain explain NAME, where NAME is a symptom, a cause, "
    "a detector, a signal, or a key of another framework's log."
)


def whole_map() -> Group:
    """Symptoms by layer, and under each its candidate causes by their layers."""
    parts: list[RenderableType] = []
    for layer in Layer:
        here = [s for s in SYMPTOMS.values() if s.layer is layer]
        parts.append(Text.assemble((numbered(layer), "bold"), f"  {QUESTIONS[layer]}"))
        parts += [_map_row(symptom) for symptom in here] or [Text("   no symptom of its own in this version", "dim")]
        parts.append(Text(""))
    parts.append(Text(_LEGEND))
    return Group(*parts)


def _map_row(symptom: Symptom) -> RenderableType:
    causes = Text(style="dim")
    for layer in Layer:
        names = [name for name in symptom.causes if CAUSES[name].layer is layer]
        if names:
            causes.append(f"{int(layer)}:{', '.join(names)}  ")
    table = grid(23)
    table.add_row(Text(symptom.name, "cyan"), Text(symptom.title))
    table.add_row("", causes)
    return Padding(table, (0, 0, 0, 3))


def explain(name: str) -> Group:
    """Everything the map knows under a name. Raises InputError with the nearest names for one it does not have."""
    return Group(*_spaced(_parts(look_up(name))))


def _parts(entry: Entry) -> Iterator[RenderableType]:
    if entry.symptom:
        yield _symptom(entry.symptom)
    if entry.cause:
        yield _cause(entry.cause)
    if entry.detector:
        yield _detector(entry.detector)
    if entry.keys:
        yield _keys(entry.name, entry.keys)
    from_keys = {key.alias.signal: _signal_of(key) for key in entry.keys}
    signals = [entry.signal] if entry.signal else []
    signals += [s for s in from_keys.values() if s is not None and s not in signals]
    for signal in signals:
        yield _signal(signal)


def _signal_of(key: Key) -> Signal | None:
    return look_up(key.signal).signal


def _spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [part, Text("")]
    return spaced[:-1]


def _symptom(symptom: Symptom) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [("looks like", prose(symptom.looks_like))]
    rows.append(("signals", Text(", ".join(symptom.signals), overflow="fold")))
    rows.append(("causes", Group(*(_candidate(CAUSES[name]) for name in symptom.causes))))
    watching = [d for d in DETECTORS if d.symptom == symptom.name]
    if watching:
        rows.append(("detectors", Text(", ".join(d.name for d in watching))))
    return _section(f"{symptom.name}: {symptom.title}", f"symptom in {numbered(symptom.layer)}", rows)


def _candidate(cause: Cause) -> Text:
    line = Text.assemble(f"{numbered(cause.layer)}  ", (cause.name, "cyan"), f"  {cause.title}. ")
    line.append_text(prose(f"Check: {cause.check}"))
    return line


def _cause(cause: Cause) -> RenderableType:
    between = f", at its interface with {numbered(cause.other_layer)}" if cause.other_layer else ""
    rows: list[tuple[str, RenderableType]] = [("how", prose(cause.mechanism)), ("check", prose(cause.check))]
    rows.append(("remedy", prose(cause.remedy)))
    rows += [(NAMES[framework], prose(text)) for framework, text in cause.remedies.items()]
    rows.append(("seen as", Text(", ".join(s.name for s in symptoms_of(cause.name)))))
    kind = "no fault" if cause.benign else "cause"
    return _section(f"{cause.name}: {cause.title}", f"{kind} in {numbered(cause.layer)}{between}", rows)


def _detector(detector: Detector) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [("looks for", prose(detector.pattern))]
    needs = "; ".join(" or ".join(need) for need in detector.needs)
    rows.append(("needs", Text(needs, overflow="fold")))
    if detector.sharpened_by:
        rows.append(("better with", Text(", ".join(detector.sharpened_by), overflow="fold")))
    if detector.yields_to:
        rows.append(("follows", Text(f"from {', '.join(detector.yields_to)}, if they began first")))
    if detector.silent_beside:
        rows.append(("silent beside", Text(f"{', '.join(detector.silent_beside)}, where they warn")))
    symptom = SYMPTOMS[detector.symptom]
    rows.append(("symptom", Text(f"{symptom.name}: {symptom.title} ({numbered(symptom.layer)})")))
    return _section(f"{detector.name}: {detector.title}", "detector", rows)


def _keys(name: str, keys: Sequence[Key]) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = []
    for key in keys:
        text = f"`{key.signal}`."
        if key.alias.scale != 1:
            text += f" Times {key.alias.scale:g}."
        text += f" {key.alias.caveat}" if key.alias.caveat else ""
        text += f" Logged once this is set: {key.alias.setting}." if key.alias.setting else ""
        rows.append((NAMES[key.framework], prose(text)))
    return _section(one_line(name), "key of a log, and what it stands for", rows)


def _signal(signal: Signal) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [("is", prose(signal.definition))]
    rows.append(("unit", Text(signal.unit)))
    if signal.healthy is not None:
        rows.append(("healthy", prose(_healthy(signal.healthy))))
    if signal.assumes:
        rows.append(("note", prose(signal.assumes)))
    seen = symptoms_seen_in(signal)
    if seen:
        rows.append(("shows", Text(", ".join(s.name for s in seen))))
    reading = detectors_reading(signal)
    if reading:
        rows.append(("read by", Text(", ".join(d.name for d in reading))))
    for framework in Framework:
        found = aliases_of(framework, signal.name)
        if found and framework is not Framework.PLAIN:
            rows.append((NAMES[framework], Text(", ".join(alias.key for alias in found), overflow="fold")))
    return _section(signal.name, f"signal in {numbered(signal.layer)}", rows)


def _healthy(healthy: HealthyRange) -> str:
    low = "" if healthy.low is None else f"at least {healthy.low:g}"
    high = "" if healthy.high is None else f"at most {healthy.high:g}"
    bounds = " and ".join(part for part in (low, high) if part)
    return f"{bounds} ({healthy.evidence}: {healthy.source}). Assumes: {healthy.assumes}"


def _section(title: str, kind: str, rows: Sequence[tuple[str, RenderableType]]) -> RenderableType:
    table: Table = grid(11)
    for label, content in rows:
        table.add_row(Text(label, style="dim"), content)
    return Group(Text.assemble((title, "bold"), (f"  {kind}", "dim")), Padding(table, (0, 0, 0, 3)))

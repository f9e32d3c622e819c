"""A diagnosis for people: six rows, then each finding with its evidence, its alternatives and what to do.

Every text that comes from the log is escaped; nothing in it is interpreted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.diagnosis import Diagnosis, LayerRow, Rooted, State
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity, Verdict
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.layers import numbered
from posttrain.faultmap.printable import one_line
from posttrain.faultmap.scales import format_number, sparkline
from posttrain.signals.aliases import NAMES, aliases_of, how_to_log
from posttrain.signals.framework import Framework
from posttrain.signals.registry import SIGNALS, UnknownSignalError, signal_for
from posttrain.signals.signal import Layer

STYLES = {
    "critical": "bold red",
    "warn": "bold yellow",
    "info": "cyan",
    "healthy": "green",
    "cannot be judged": "dim",
    Verdict.SUPPORTED.value: "bold",
    Verdict.RULED_OUT.value: "dim",
}
_BARS = 24
_SHOWN_UNMAPPED = 8
_SHOWN_PROBLEMS = 10
_SHOWN_NOTES = 4
_VERDICT_ORDER = (Verdict.SUPPORTED, Verdict.UNKNOWN, Verdict.RULED_OUT)


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print all of it, worst first."""
    console.print(heading(diagnosis.history), Text(""), rows_table(diagnosis.rows), Text(""), sep="\n")
    for number, rooted in enumerate(diagnosis.findings, 1):
        console.print(_rooted(number, rooted, diagnosis.history), Text(""), sep="\n")
    console.print(_rest(diagnosis))


def heading(history: History) -> Text:
    """Whose log it is, how long, and how much of it was understood."""
    ends = [(int(c.steps[0]), int(c.steps[-1])) for c in history.courses.values() if len(c)]
    steps = f"steps {min(a for a, _ in ends)} to {max(b for _, b in ends)}" if ends else "no step"
    log = "a plain table" if history.framework is Framework.PLAIN else f"a log of {NAMES[history.framework]}"
    return Text.assemble(
        (one_line(history.source), "bold"), f"  {log}, {steps}, {len(history.courses)} signals", overflow="fold"
    )


def rows_table(rows: Sequence[LayerRow]) -> Table:
    """The six layers in the order in which to look."""
    table = grid(13, 10)
    for row in rows:
        state = "unknown" if row.state is State.UNKNOWN else row.state.value
        table.add_row(
            Text(numbered(row.layer)), Text(state, style=STYLES[row.state.value]), Text(row_text(row), overflow="fold")
        )
    return table


def row_text(row: LayerRow) -> str:
    """Symptom and cause of the worst finding of a layer, and what was not judged in it."""
    parts: list[str] = []
    if row.worst is not None:
        symptom, cause = SYMPTOMS[row.worst.symptom], CAUSES[row.worst.cause]
        elsewhere = f" (seen in {numbered(symptom.layer)})" if symptom.layer is not row.layer else ""
        if cause.layer is not row.layer:
            elsewhere = f" (cause in {numbered(cause.layer)})"
        parts.append(f"{symptom.title}: {_lower(cause.title)}{elsewhere}")
    elif row.state is State.UNKNOWN:
        parts.append("nothing in this log shows it" if row.unjudged else "no detector looks here yet")
    if row.unjudged:
        parts.append("not judged: " + ", ".join(one.detector.name for one in row.unjudged))
    return "; ".join(parts)


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def finding_line(finding: Finding, severity: Severity | None = None) -> Text:
    """A finding in one line: severity (its own, or the one given), symptom, when."""
    shown = str(severity or finding.severity)
    return Text.assemble(
        (shown, STYLES[shown]),
        f"  {SYMPTOMS[finding.symptom].title}",
        (f"  {when(finding)}", "dim"),
    )


def _rooted(number: int, rooted: Rooted, history: History) -> Group:
    finding = rooted.finding
    body = grid(9)
    for label, content in _entries(rooted, history):
        body.add_row(Text(label, style="dim"), content)
    title = Text.assemble((f"{number}  ", "bold"), finding_line(finding, rooted.severity))
    return Group(title, Padding(body, (0, 0, 0, 3)))


def _entries(rooted: Rooted, history: History) -> Iterable[tuple[str, RenderableType]]:
    finding = rooted.finding
    symptom, cause = SYMPTOMS[finding.symptom], CAUSES[finding.cause]
    yield "layer", Text(_layers(symptom.layer, cause.layer, cause.other_layer))
    sure = f"  ({finding.cause}, confidence {finding.confidence:.0%}, detector {finding.detector})"
    yield "cause", Text.assemble((cause.title, "bold"), (sure, "dim"))
    yield "why", Text(one_line(finding.summary, 600))
    if finding.evidence:
        yield "evidence", Group(*(_evidence(one, history, finding.onset_step) for one in finding.evidence))
    if finding.severity is Severity.INFO:
        yield "so", prose(cause.remedy)
        return
    if finding.differential:
        judged = sorted(finding.differential, key=lambda c: _VERDICT_ORDER.index(c.verdict))
        yield "causes", Group(*(_candidate(one) for one in judged))
    yield "check", prose(cause.check)
    yield "remedy", prose(cause.remedy)
    here = cause.remedies.get(history.framework)
    if here is not None:
        yield f"{NAMES[history.framework]}"[:9], prose(here)
    if rooted.consequences:
        yield "leads to", Group(*(_consequence(one) for one in rooted.consequences))


def _layers(symptom: Layer, cause: Layer, other: Layer | None) -> str:
    text = numbered(cause) if symptom is cause else f"seen in {numbered(symptom)}, caused in {numbered(cause)}"
    if other is None:
        return text
    return f"{text}, at their interface" if other is symptom else f"{text}, at the interface with {numbered(other)}"


def _evidence(one: Observation, history: History, onset: int) -> Text:
    course = history.course(one.signal)
    line = Text(f"{one_line(one.signal)}  ")
    if len(course.finite) > 2:
        line.append(spark(course, onset), "cyan")
        line.append("\n  ")
    value = format_number(one.value, _unit(one.signal))
    line.append(f"step {one.step}: {value}", "bold")
    line.append(f", {one_line(one.shows)}")
    return line


def spark(course: Course, onset: int) -> str:
    """The course as bars, with a mark where the finding begins."""
    known = course.finite
    bars = sparkline([float(v) for v in known.values], _BARS)
    before = int((known.steps < onset).sum())
    place = round(len(bars) * before / len(known))
    return f"{bars[:place]}┊{bars[place:]}" if 0 < place < len(bars) else bars


def _unit(name: str) -> str:
    try:
        return (SIGNALS.get(name) or signal_for(name)).unit
    except UnknownSignalError:
        return ""


def _candidate(one: Candidate) -> Text:
    cause = CAUSES[one.cause]
    style = STYLES.get(one.verdict.value, "")
    line = Text.assemble((f"{one.verdict.value}: ", style), f"{_lower(cause.title)} ({numbered(cause.layer)}); ")
    line.append(one_line(one.reason), "dim")
    unsaid = [name for name in one.log_this if name not in one.reason]
    if one.verdict is Verdict.UNKNOWN and unsaid:
        line.append(f" (log {', '.join(unsaid)})", "dim")
    return line


def _consequence(finding: Finding) -> Text:
    line = finding_line(finding)
    line.append(f"  {one_line(finding.summary)}")
    return line


def when(finding: Finding) -> str:
    """``since step 12``, or from which step to which."""
    if finding.last_step is None:
        return f"since step {finding.onset_step}"
    return f"steps {finding.onset_step} to {finding.last_step}"


def prose(text: str) -> Text:
    """Text of the map, with what stands in backquotes set apart."""
    line = Text(overflow="fold")
    for i, part in enumerate(text.split("`")):
        line.append(f"`{part}`" if i % 2 else part, "bold" if i % 2 else "")
    return line


def _rest(diagnosis: Diagnosis) -> Group:
    """What was not judged and how to log it, what went wrong with reading, and the last word."""
    history = diagnosis.history
    parts = _wanted(diagnosis)
    parts += _list("How the log was read", history.notes, shown=_SHOWN_NOTES)
    keys = [f"{one_line(one.key, 60)}" for one in history.unmapped]
    if keys:
        more = f" and {len(keys) - _SHOWN_UNMAPPED} more" if len(keys) > _SHOWN_UNMAPPED else ""
        parts += _list("Keys that stand for no signal known here", [", ".join(keys[:_SHOWN_UNMAPPED]) + more])
    parts += _list("Could not be read", history.problems, "yellow")
    failures = [f"detector {f.detector} failed: {f.problem}" for f in diagnosis.failures]
    parts += _list("Faults of posttrain itself; please report them", failures, "bold red")
    parts.append(verdict(diagnosis))
    return Group(*parts)


def _wanted(diagnosis: Diagnosis) -> list[RenderableType]:
    """Signals that would let more be judged, the most wanted first: how to log them in this framework."""
    framework = diagnosis.history.framework
    users: dict[str, list[str]] = {}
    for names, user in _missed(diagnosis):
        users.setdefault(_easiest(framework, names), []).append(user)
    if not users:
        return []
    ordered = sorted(users, key=lambda name: (-len(set(users[name])), name))
    if framework is Framework.POSTTRAIN:
        # Written wherever there is something to measure: no anchor, no divergence from it.
        missing = ", ".join(f"{name} (for {', '.join(dict.fromkeys(users[name]))})" for name in ordered)
        return _list("Not measured in this run", [missing])
    lines: list[RenderableType] = []
    for name in (n for n in ordered if _is_logged_by(framework, n)):
        lines.append(Text.assemble((name, "bold"), (f"  for {', '.join(dict.fromkeys(users[name]))}", "dim")))
        lines.append(Padding(prose(how_to_log(framework, name)), (0, 0, 0, 3)))
    others = [f"{n} (for {', '.join(dict.fromkeys(users[n]))})" for n in ordered if not _is_logged_by(framework, n)]
    if others:
        lines.append(
            Text(f"{NAMES[framework]} does not log the following by itself. posttrain explain NAME defines each:")
        )
        lines.append(Padding(Text(", ".join(others), style="dim"), (0, 0, 0, 3)))
    return [Text("To judge more, log", style="bold"), Padding(Group(*lines), (0, 0, 0, 3)), Text("")]


def _missed(diagnosis: Diagnosis) -> Iterator[tuple[tuple[str, ...], str]]:
    """Alternative signals, one of which is missing, and the detector or cause that misses them."""
    for one in diagnosis.unjudged:
        for names in one.missing:
            yield names, one.detector.name
    for finding in diagnosis.all_findings:
        for candidate in finding.differential:
            if candidate.verdict is Verdict.UNKNOWN and finding.severity > Severity.INFO:
                yield from (
                    ((name,), candidate.cause) for name in candidate.log_this if not diagnosis.history.has(name)
                )


def _easiest(framework: Framework, names: Sequence[str]) -> str:
    """Of alternatives, the first that the framework logs by itself; else the first."""
    return next((name for name in names if _is_logged_by(framework, name)), names[0])


def _is_logged_by(framework: Framework, name: str) -> bool:
    try:
        return bool(aliases_of(framework, name))
    except UnknownSignalError:
        return False


def _list(title: str, texts: Sequence[str], style: str = "", shown: int = _SHOWN_PROBLEMS) -> list[RenderableType]:
    if not texts:
        return []
    lines = [Text(one_line(text, 600), style=style, overflow="fold") for text in texts[:shown]]
    if len(texts) > shown:
        lines.append(Text(f"and {len(texts) - shown} more (all of them: --json)", style="dim"))
    return [Text(title, style="bold"), *(Padding(line, (0, 0, 0, 3)) for line in lines), Text("")]


def verdict(diagnosis: Diagnosis) -> Text:
    """The last line: how many findings of which severity, by how many detectors."""
    number = diagnosis.judged + len(diagnosis.unjudged) + len(diagnosis.failures)
    asked = f"{diagnosis.judged} of {number} detectors"
    counts = {s: sum(f.severity is s for f in diagnosis.all_findings) for s in sorted(Severity, reverse=True)}
    found = ", ".join(f"{n} {severity}" for severity, n in counts.items() if n)
    if not found:
        return Text(f"Nothing found by {asked}.", style="green")
    return Text(f"{found} found by {asked}. More about a name: posttrain explain NAME")


def grid(*widths: int) -> Table:
    """A borderless table: columns of fixed widths and a last one that takes the rest."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in widths:
        table.add_column(width=width, no_wrap=True)
    table.add_column(ratio=1)
    return table

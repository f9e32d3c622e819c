"""What the detectors say about a run, in its report and in its view."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from posttrain.errors import InputError
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.diagnosis import Diagnosis, LayerRow, Rooted, State, diagnose
from posttrain.faultmap.doctor_text import finding_line, row_text, spark, when
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity, Verdict
from posttrain.faultmap.history import History
from posttrain.faultmap.layers import QUESTIONS, numbered
from posttrain.faultmap.markup import Html, join, tag
from posttrain.faultmap.printable import one_line
from posttrain.faultmap.readers.run_directory import history_of
from posttrain.faultmap.scales import format_number
from posttrain.rundir.reading import LoadedRun
from posttrain.signals.framework import Framework


def diagnosis_of(run: LoadedRun) -> Diagnosis | None:
    """What is wrong with a run; ``None`` where it has no metrics yet."""
    try:
        return diagnose(history_of(run))
    except InputError:
        return None


def findings_section(diagnosis: Diagnosis) -> Html:
    """Six rows, then the findings; what is only worth knowing is folded up."""
    rows = tag("table", *(_row(row) for row in diagnosis.rows), class_="layers")
    blocks = [tag("h2", "What is wrong?"), tag("div", rows, class_="card")]
    blocks += [_rooted(rooted, diagnosis.history) for rooted in diagnosis.findings]
    failures = [f"Detector {f.detector} failed: {f.problem}" for f in diagnosis.failures]
    blocks += [tag("p", text, class_="sub") for text in failures]
    return tag("div", *blocks, class_="blocks")


def finding_lines(diagnosis: Diagnosis) -> list[Text]:
    """A line for each root that is more than worth knowing."""
    return [finding_line(r.finding, r.severity) for r in diagnosis.findings if r.severity > Severity.INFO]


def _row(row: LayerRow) -> Html:
    state = "unknown" if row.state is State.UNKNOWN else row.state.value
    return tag(
        "tr",
        tag("td", numbered(row.layer), title=QUESTIONS[row.layer]),
        tag("td", state, class_=f"state {state}"),
        tag("td", row_text(row)),
    )


def _rooted(rooted: Rooted, history: History) -> Html:
    finding, severity = rooted.finding, rooted.severity
    title = tag(
        "summary",
        tag("b", str(severity), class_=f"state {severity}"),
        " ",
        tag("b", SYMPTOMS[finding.symptom].title),
        f" {when(finding)}: {one_line(finding.summary, 600)}",
    )
    entries = [join((tag("dt", label), tag("dd", content))) for label, content in _entries(rooted, history)]
    return tag("details", title, tag("dl", *entries, class_="card finding"), open=severity > Severity.INFO)


def _entries(rooted: Rooted, history: History) -> Iterator[tuple[str, Html | str]]:
    finding = rooted.finding
    symptom, cause = SYMPTOMS[finding.symptom], CAUSES[finding.cause]
    sure = f"{cause.title} ({finding.cause}, confidence {finding.confidence:.0%})"
    yield "cause", f"{sure}, in {numbered(cause.layer)}; seen in {numbered(symptom.layer)}"
    yield "how", cause.mechanism
    if finding.evidence:
        yield "evidence", join(tag("div", _evidence(one, history, finding.onset_step)) for one in finding.evidence)
    if finding.differential:
        yield "causes", join(tag("div", _candidate(one)) for one in finding.differential)
    yield "check", _prose(cause.check)
    yield "remedy", _prose(cause.remedy)
    here = cause.remedies.get(Framework.POSTTRAIN)
    if here is not None:
        yield "here", _prose(here)
    if rooted.consequences:
        yield "leads to", join(tag("div", _consequence(one)) for one in rooted.consequences)


def _evidence(one: Observation, history: History, onset: int) -> Html:
    course = history.course(one.signal)
    bars = tag("code", f" {spark(course, onset)} ") if len(course.finite) > 2 else " "
    return join((tag("code", one.signal), bars, f"step {one.step}: {format_number(one.value)}, {one_line(one.shows)}"))


def _candidate(one: Candidate) -> Html:
    cause = CAUSES[one.cause]
    kind = {Verdict.SUPPORTED: "supported", Verdict.RULED_OUT: "out", Verdict.UNKNOWN: "open"}[one.verdict]
    return join(
        (tag("b", one.verdict.value, class_=kind), f" {cause.title} ({numbered(cause.layer)}): {one_line(one.reason)}")
    )


def _consequence(one: Finding) -> Html:
    title = f" {SYMPTOMS[one.symptom].title} {when(one)}: {one_line(one.summary)}"
    return join((tag("b", str(one.severity), class_=f"state {one.severity}"), title))


def _prose(text: str) -> Html:
    return join(tag("code", part) if i % 2 else part for i, part in enumerate(text.split("`")))

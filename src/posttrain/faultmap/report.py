"""One self-contained HTML file about a run: it loads nothing, and nothing in it executes but its own script."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

from posttrain.errors import InputError
from posttrain.faultmap.charts import Chart, Heatmap
from posttrain.faultmap.markup import Html, json_block, tag
from posttrain.faultmap.report_browser import browser
from posttrain.faultmap.report_curves import (
    GIVEN_ROWS,
    LOGPROBS,
    REWARD,
    SAMPLES,
    UPDATE,
    CurveChart,
    curve_chart,
    draw_all,
    evaluation_chart,
    part_charts,
    signal_table,
)
from posttrain.faultmap.report_data import RunView, load_view
from posttrain.faultmap.report_engine import engine_charts, waiting_table
from posttrain.faultmap.report_evaluation import cost_chart, ends_of, headline, table_of
from posttrain.faultmap.report_facts import fact_strip, identity_table, problem_box, settings_table, title_of
from posttrain.faultmap.report_findings import diagnosis_of, findings_section
from posttrain.faultmap.report_groups import attention_chart, difficulty_chart, total_chart
from posttrain.faultmap.report_summary import summary_of
from posttrain.rundir.files import replace_atomically

REPORT_NAME = "report.html"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a run directory and return its path (``report.html`` in the run unless ``out`` is given).

    Raises InputError if ``run`` is no run directory or ``out`` cannot be written. Damaged files of the run are
    named in the report.
    """
    target = out if out is not None else run / REPORT_NAME
    text = render_report(load_view(run))

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(target, write)
    except OSError as error:
        raise InputError(
            "--out",
            str(target),
            f"cannot be written ({error.strerror or error})",
            "Give a file in a writable directory.",
        ) from error
    return target


def render_report(view: RunView) -> str:
    """The report as one HTML text."""
    hovers: dict[str, object] = {}
    frame, trajectories = browser(view, view.run.directory.path)
    sections = [
        ("result", "", _result(view, hovers)),
        ("findings", "Findings", _findings(view)),
        ("curves", "Curves", _curves(view, hovers)),
        ("groups", "Groups", _groups(view, hovers)),
        ("engine", "Engine", _engine(view, hovers)),
        ("trajectories", "Trajectories", _browser_section(view, frame)),
        ("settings", "Settings", _settings(view)),
    ]
    present = [(name, title, body) for name, title, body in sections if body is not None]
    links = [tag("a", title or "Result", href=f"#section-{name}") for name, title, _ in present]
    theme = tag("button", "light / dark", id="theme", type="button")
    body = tag(
        "body",
        tag("nav", tag("b", "posttrain"), *links, theme),
        tag("main", *(tag("section", content, id=f"section-{name}") for name, _, content in present), _footer()),
        tag("div", id="hover", role="tooltip"),
        json_block("charts", hovers),
        trajectories,
        tag("script", Html(_asset("report.js"))),
    )
    return f"<!doctype html>\n{tag('html', _head(title_of(view.run)), body, lang='en')}\n"


def content_policy(style: str, script: str) -> str:
    """Content-Security-Policy under which only our own style and script run and nothing is ever fetched."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src 'sha256-{_digest(style)}'",
            f"script-src 'sha256-{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _head(title: str) -> Html:
    style = _asset("report.css")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=content_policy(style, _asset("report.js"))),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} – posttrain report"),
        tag("style", Html(style)),
    )


def _result(view: RunView, hovers: dict[str, object]) -> Html:
    run = view.run
    ends = ends_of(run.metrics)
    blocks: list[Html] = [tag("h1", title_of(run)), fact_strip(view)]
    blocks += [headline(end, summary_of(run.evaluation_summary, end.environment)) for end in ends]
    found: list[tuple[str, Chart | None]] = [("reward", curve_chart(run.metrics, REWARD[0]))]
    for i, end in enumerate(ends):
        place = f", {end.environment}" if len(ends) > 1 else ""
        found.append((f"held-out-{i}", evaluation_chart(run.metrics, end.environment, f"Held-out success{place}")))
        found.append((f"cost-{i}", cost_chart(end, f"Success against generated tokens{place}")))
    charts = [(name, chart) for name, chart in found if chart is not None]
    blocks.append(draw_all(charts, hovers))
    blocks += [
        tag("details", tag("summary", tag("b", "All evaluation values"), f", {end.environment}"), table_of(end))
        for end in ends
    ]
    if view.problems:
        blocks.insert(2, problem_box(view.problems))
    return tag("div", *blocks, class_="blocks")


def _findings(view: RunView) -> Html | None:
    diagnosis = diagnosis_of(view.run)
    return None if diagnosis is None else findings_section(diagnosis)


def _curves(view: RunView, hovers: dict[str, object]) -> Html | None:
    table = view.run.metrics
    if not table.rows:
        return None
    rows: tuple[tuple[str, str, list[CurveChart]], ...] = (
        ("Is the reward right?", "reward", [*REWARD[1:], *part_charts(table)]),
        ("Is it learnt from the rows, or from their length?", "rows", list(GIVEN_ROWS)),
        ("Is the update controlled?", "update", list(UPDATE)),
        ("Are sampler and trainer the same policy?", "logprobs", list(LOGPROBS)),
        ("What do the samples look like?", "samples", list(SAMPLES)),
    )
    blocks: list[Html] = [
        tag("h2", "Curves"),
        tag(
            "p",
            "In the order in which to look. Green: healthy range, where one is known. × marks what was not finite.",
            class_="sub",
        ),
    ]
    for title, name, plans in rows:
        found = [(f"{name}-{i}", curve_chart(table, plan)) for i, plan in enumerate(plans)]
        charts = [(identifier, chart) for identifier, chart in found if chart is not None]
        if charts:
            blocks += [tag("h3", title), draw_all(charts, hovers)]
    count = len(table.names())
    summary = tag("summary", tag("b", f"All {count} signals"), " with their meaning")
    blocks.append(tag("details", summary, tag("div", signal_table(table), class_="card")))
    return tag("div", *blocks, class_="blocks")


def _groups(view: RunView, hovers: dict[str, object]) -> Html | None:
    if not view.groups:
        return None
    charts: list[tuple[str, Chart] | tuple[str, Heatmap]] = [
        ("groups-difficulty", difficulty_chart(view.groups)),
        ("groups-attention", attention_chart(view.groups)),
        ("groups-total", total_chart(view.groups)),
    ]
    text = (
        f"Groups with at least two gradable members, from {view.files_read} of {len(view.run.trajectory_files)} steps. "
        "Success: a reward at or above the environment's threshold."
    )
    return tag("div", tag("h2", "Groups"), tag("p", text, class_="sub"), draw_all(charts, hovers), class_="blocks")


def _engine(view: RunView, hovers: dict[str, object]) -> Html | None:
    charts = engine_charts(view.run, hovers)
    if charts is None:
        return None
    text = (
        "One time axis: which part works, what the engine does meanwhile. Phases are laid out from the measured "
        "durations of each step; pauses between attempts are cut."
    )
    waiting = waiting_table(view.run)
    return tag("div", tag("h2", "Engine and trainer"), tag("p", text, class_="sub"), charts, waiting, class_="blocks")


def _browser_section(view: RunView, frame: Html) -> Html:
    text = (
        f"{len(view.samples)} trajectories shown, chosen from {view.trajectories_read} in {view.files_read} of "
        f"{len(view.run.trajectory_files)} training steps and from the first and last evaluation. "
        "Hover over a token for its id, log-probs and policy version."
    )
    return tag("div", tag("h2", "Trajectories"), tag("p", text, class_="sub"), frame, class_="blocks")


def _settings(view: RunView) -> Html | None:
    info = view.run.info
    if info is None:
        return None
    return tag(
        "div",
        tag("h2", "Which policy is it?"),
        identity_table(info),
        tag("h2", "Settings"),
        settings_table(info),
        class_="blocks",
    )


def _footer() -> Html:
    return tag("footer", "Made by posttrain from the run directory alone. This page loads nothing and sends nothing.")


def _asset(name: str) -> str:
    return resources.files("posttrain.faultmap").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""What the run was: title, facts, settings with reasons, policy identity, and what could not be read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.faultmap.markup import Html, join, tag
from posttrain.faultmap.report_data import RunView
from posttrain.faultmap.report_summary import as_mapping
from posttrain.faultmap.scales import format_number
from posttrain.rundir.info import PolicyIdentity, RunInfo
from posttrain.rundir.reading import LoadedRun


def title_of(run: LoadedRun) -> str:
    """What was trained, on what, how; the folder's name where ``run.json`` is damaged."""
    if run.info is None:
        return run.directory.path.name
    settings = run.info.settings
    model = str(as_mapping(settings.get("model")).get("path", "")).rstrip("/").rsplit("/", 1)[-1]
    tasks = ", ".join(as_mapping(settings.get("environments")))
    algorithm = as_mapping(settings.get("policy")).get("algorithm", "")
    about = " ".join(
        part for part in (model, f"on {tasks}" if tasks else "", f"with {algorithm}" if algorithm else "") if part
    )
    return f"{run.info.name}: {about}" if about else run.info.name


def fact_strip(view: RunView) -> Html:
    """A line of small facts."""
    run, info = view.run, view.run.info
    facts: list[tuple[str, str]] = []
    train = [row for row in run.metrics.rows if row.phase == "train"] or list(run.metrics.rows)
    if info is not None:
        planned = as_mapping(info.settings.get("run")).get("steps")
        facts.append(("steps", f"{train[-1].step if train else 0}" + (f" of {planned}" if planned else "")))
    seconds = run.metrics.series("time/step")[1]
    if seconds.size:
        facts.append(("training time", duration(float(seconds[seconds == seconds].sum()))))
    tokens = run.metrics.series("rollout/generated_tokens")[1]
    if tokens.size:
        facts.append(("tokens sampled", format_number(float(tokens[tokens == tokens].sum()))))
    for label, name in (("rollout", "rollout/tokens_per_second"), ("training", "train/tokens_per_second")):
        rates = run.metrics.series(name)[1]
        rates = rates[rates == rates]
        if rates.size:
            facts.append((label, f"{format_number(float(sorted(rates.tolist())[rates.size // 2]))} tokens/s"))
    memory = run.metrics.last("run/peak_memory")
    if memory is not None and memory == memory:
        facts.append(("peak memory", f"{memory / 2**30:.2f} GiB"))
    if info is not None:
        facts += _machine_facts(info)
    return tag("div", *(tag("div", tag("span", label), tag("b", value)) for label, value in facts), class_="facts")


def problem_box(problems: Sequence[str]) -> Html:
    """Files that are damaged, by name."""
    items = [tag("li", text) for text in problems]
    return tag(
        "div",
        tag("h3", f"{len(problems)} things in this run could not be read"),
        tag("ul", *items),
        class_="card problems",
        id="problems",
    )


def identity_table(info: RunInfo) -> Html:
    """Every optimisation that is on or off, and what it does to the question which policy sampled."""
    heads = (
        "optimisation",
        "",
        "which policy really sampled",
        "its log-prob is trusted",
        "same objective",
        "corrected by",
    )
    rows = [_identity_row(row) for row in sorted(info.policy_identity, key=lambda row: not row.on)]
    if not rows:
        return tag("p", "The run recorded no policy-identity table.", class_="note")
    table = tag("table", tag("thead", tag("tr", *(tag("th", h) for h in heads))), tag("tbody", *rows))
    return tag("div", table, class_="card scroll")


def settings_table(info: RunInfo) -> Html:
    """All resolved settings with the reasons of automatic choices, then versions and attempts."""
    reasons = {choice.setting: choice.reason for choice in info.choices}
    flat = dict(flatten(info.settings))
    flat |= {choice.setting: choice.value for choice in info.choices if choice.setting not in flat}
    rows = [
        tag("tr", tag("td", name, class_="value"), tag("td", _shown(value), class_="value"),
            tag("td", reasons.get(name, ""), class_="reason"))
        for name, value in flat.items()
    ]  # fmt: skip
    automatic = {choice.setting for choice in info.choices if choice.automatic}
    chosen = [row for row, name in zip(rows, flat, strict=True) if name in automatic]
    head = tag("thead", tag("tr", tag("th", "setting"), tag("th", "value"), tag("th", "why")))
    search = tag(
        "input", id="settings-search", type="search", placeholder="search settings", aria_label="search settings"
    )
    parts = [
        tag("div", tag("h3", "Chosen by the program"), tag("table", head, tag("tbody", *chosen)), class_="card scroll")
        if chosen
        else None,
        tag(
            "details",
            tag("summary", tag("b", f"All {len(rows)} settings")),
            tag("div", search, tag("table", head, tag("tbody", *rows), id="settings-table"), class_="card scroll"),
        ),
        tag("details", tag("summary", tag("b", "Versions, machine, attempts")), _provenance(info)),
    ]
    return join(part for part in parts if part is not None)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings as dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(as_mapping(value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _machine_facts(info: RunInfo) -> list[tuple[str, str]]:
    facts = [("device", f"{info.plan.device}, {info.plan.compute_dtype}"), ("seed", str(info.seed))]
    if len(info.attempts) > 1:
        facts.append(("attempts", str(len(info.attempts))))
    if info.attempts:
        facts.append(("state", info.attempts[-1].outcome))
    return facts


def _identity_row(row: PolicyIdentity) -> Html:
    cells = [
        tag("td", row.optimisation),
        tag("td", "on" if row.on else "off", class_="state"),
        tag("td", row.sampled_by),
        tag("td", _yes(row.logprob_trusted)),
        tag("td", _yes(row.same_objective)),
        tag("td", row.corrected_by or "nothing has to", class_="reason"),
    ]
    return tag("tr", *cells, class_=None if row.on else "off")


def _yes(value: bool) -> Html:
    return tag("span", "yes" if value else "no", class_="score good" if value else "score poor")


def _provenance(info: RunInfo) -> Html:
    rows = [
        ("created", _moment(info.created)),
        *info.versions.items(),
        *((k, _shown(v)) for k, v in flatten(info.facts)),
    ]
    for attempt in info.attempts:
        machine = attempt.machine
        origin = "" if attempt.resumed_from_step is None else f", resumed from step {attempt.resumed_from_step}"
        ended = f", {attempt.outcome} {_moment(attempt.ended)}" if attempt.ended else f", {attempt.outcome}"
        detail = f" ({attempt.detail})" if attempt.detail else ""
        where = f"; {machine.processor or machine.system}, {machine.cores} cores, {machine.memory / 2**30:.0f} GiB"
        rows.append((f"attempt {attempt.attempt}", f"{_moment(attempt.started)}{origin}{ended}{detail}{where}"))
    body = [tag("tr", tag("td", name, class_="value"), tag("td", value)) for name, value in rows]
    return tag("div", tag("table", tag("tbody", *body)), class_="card scroll")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)

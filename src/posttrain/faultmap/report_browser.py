"""The browser of trajectories: what the page's script gets to show, and the frame it fills."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from posttrain.faultmap.markup import Html, join, json_block, tag
from posttrain.faultmap.report_data import RunView, success_thresholds
from posttrain.faultmap.report_samples import Sample, is_success, outcome
from posttrain.faultmap.report_tokens import find_tokenizer, token_texts
from posttrain.trajectory import GradeStatus, Trajectory

TOKEN_BUDGET = 50_000
"""Tokens in one report, over all trajectories: about 30 bytes each."""
MIN_TOKENS = 64
TEXT_LIMIT = 4_000
TAGS = ("best", "worst", "truncated", "ungradable", "random", "before", "after")


class Entry(TypedDict):
    """One trajectory for the page. A column is one value if all tokens share it, else one a token."""

    id: str
    index: str
    step: int
    kind: str
    tags: list[str]
    status: str
    success: bool
    reward: float | None
    parts: list[tuple[str, float | None]]
    reason: str
    failure: str
    finish: str
    temperature: float
    retry: int
    attempt: int
    seconds: float | None
    prompt: list[tuple[str, str]]
    gold: str | None
    text: str | None
    length: int
    shown_of: int
    version_span: str
    tokens: list[int]
    origin: Any
    sampler: Any
    difference: Any
    reference: Any
    advantage: Any
    trained: Any
    version: Any
    group: list[tuple[str, str]]


def browser(view: RunView, path: Path) -> tuple[Html, Html]:
    """The browser and its data block."""
    tokenizer, problem = find_tokenizer(path)
    if problem:
        view.notes.append(problem)
    cap = max(MIN_TOKENS, TOKEN_BUDGET // max(1, len(view.samples)))
    newest_first = sorted(view.samples, key=lambda sample: -sample.step)
    thresholds = success_thresholds(view.run.info)
    entries = [entry(sample, cap, thresholds) for sample in newest_first]
    ids = {token for e in entries for token in e["tokens"]}
    texts = token_texts(tokenizer, ids) if tokenizer is not None else {}
    data = json_block("trajectories", {"entries": entries, "texts": texts})
    return _frame(entries), data


def entry(sample: Sample, cap: int, thresholds: Mapping[str, float]) -> Entry:
    """What the page needs of one trajectory; at most ``cap`` tokens of it."""
    t = sample.trajectory
    start = t.num_prompt_tokens
    part = slice(start, min(len(t), start + cap))
    sampler, columns = t.sampler_logprobs[part], t.columns
    trainer = None if columns.trainer_logprob is None else columns.trainer_logprob[part]
    versions = t.policy_versions[part]
    model_versions = sorted({s.policy_version for s in t.segments if s.policy_version is not None})
    grade = t.grade
    return Entry(
        id=t.trajectory_id,
        index=t.trajectory_id.rsplit("/", 1)[-1],
        step=sample.step,
        kind=sample.kind,
        tags=[name for name in TAGS if name in sample.tags],
        status=_status(t),
        success=is_success(t, thresholds),
        reward=grade.reward if grade else None,
        parts=[] if grade is None else list(grade.parts.items()),
        reason=_shorten(_reason(sample)),
        failure=_shorten(t.failure),
        finish=str(t.finish_reason) if t.finish_reason else "unfinished",
        temperature=t.sampling.temperature,
        retry=t.retry,
        attempt=t.attempt,
        seconds=round(t.timings.finished - t.timings.submitted, 3) if t.timings.finished else None,
        prompt=[(m.role, _shorten(m.content)) for m in t.task.messages],
        gold=None if t.task.gold is None else _shorten(_plain(t.task.gold)),
        text=None if sample.stored.completion is None else _shorten(sample.stored.completion),
        length=t.num_model_tokens,
        shown_of=len(t) - start,
        version_span=_span(model_versions),
        tokens=t.token_ids[part].tolist(),
        origin=_column(t.origins[part], 0),
        sampler=_column(sampler, 4),
        difference=_column(None if trainer is None else trainer - sampler, 3),
        reference=_column(None if columns.reference_logprob is None else columns.reference_logprob[part], 4),
        advantage=_column(None if columns.advantage is None else columns.advantage[part], 3),
        trained=_column(None if columns.loss_mask is None else columns.loss_mask[part].astype(np.int8), 0),
        version=_column(np.where(versions < 0, np.nan, versions), 0),
        group=sample.members,
    )


def _frame(entries: Sequence[Entry]) -> Html:
    counts: Mapping[str, int] = {name: sum(name in e["tags"] for e in entries) for name in TAGS}
    chips = [_chip("all", len(entries), True)]
    chips += [_chip(name, counts[name], False) for name in TAGS if counts[name] or name == "ungradable"]
    steps = sorted({(e["kind"], e["step"]) for e in entries}, key=lambda pair: (pair[0] != "train", pair[1]))
    options = [tag("option", "every step", value="")]
    options += [
        tag("option", f"step {step}" if kind == "train" else f"evaluation, step {step}", value=f"{kind} {step}")
        for kind, step in steps
    ]
    fields = tag(
        "div",
        tag("select", *options, id="step-filter", aria_label="step"),
        tag("input", id="search", type="search", placeholder="search texts", aria_label="search"),
        class_="fields",
    )
    side = tag(
        "div",
        tag("div", *chips, fields, class_="filters"),
        tag("ul", id="list", role="listbox", tabindex="0", aria_label="trajectories"),
        class_="side",
    )
    return join(
        (
            tag("div", side, tag("div", id="detail", aria_live="polite"), id="browser", class_="card"),
            tag("noscript", tag("p", "The browser of trajectories needs the script of this page.", class_="note")),
        )
    )


def _chip(name: str, count: int, pressed: bool) -> Html:
    return tag(
        "button",
        name,
        tag("small", str(count)),
        type="button",
        data_tag=name,
        aria_pressed="true" if pressed else "false",
    )


def _status(trajectory: Trajectory) -> str:
    if trajectory.grade is None:
        return "not graded"
    return "graded" if trajectory.grade.status is GradeStatus.GRADED else outcome(trajectory)


def _reason(sample: Sample) -> str:
    reason = sample.trajectory.grade.reason if sample.trajectory.grade else ""
    discarded = sample.stored.group_discard_reason
    return reason + (f"\nIts group was not trained: {discarded}" if discarded else "")


def _column(values: npt.NDArray[Any] | None, digits: int) -> Any:
    """Rounded values with ``None`` for NaN; a single one if all are equal."""
    if values is None:
        return None
    rounded = [_round(v, digits) for v in values.tolist()]
    return rounded[0] if rounded and all(v == rounded[0] for v in rounded) else rounded


def _round(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if digits == 0 else float(f"{value:.{digits}g}")


def _span(versions: Sequence[int]) -> str:
    if not versions:
        return ""
    return str(versions[0]) if versions[0] == versions[-1] else f"{versions[0]}–{versions[-1]}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … ({len(text) - TEXT_LIMIT} characters more)"

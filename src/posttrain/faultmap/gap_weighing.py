"""What the gap between sampler and trainer says about each cause of another symptom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.faultmap.finding import Candidate, Verdict
from posttrain.faultmap.gap import Gap, aged_by, find_gap, gap_course
from posttrain.faultmap.history import Course, History

_SAYS: Mapping[str, str] = {
    "temperature_not_matched": "the gap has no direction",
    "support_not_matched": "the gap is not of one sign",
    "prompt_handled_differently": "the first token's gap does not stand out",
    "numerics_differ": "rounding does not explain it",
    "stale_weights": "it was there before any update, or does not follow the updates",
    "weights_corrupted_in_sync": "the samples are not garbage",
}
GAP_CAUSES = (*_SAYS, "stale_cache", "data_too_old")
"""Causes that this module can judge."""


def weigh_gap(history: History, causes: Sequence[str], onset: int) -> list[Candidate]:
    """What the gap says about each of ``causes`` (of `GAP_CAUSES`) of a symptom that began at ``onset``."""
    d = gap_course(history)
    gap = find_gap(history) if causes else None
    if gap is not None and gap.onset_step > onset + _some_points(d):
        gap = None
    return [_weigh_age(history, onset) if c == "data_too_old" else _weigh(d, gap, c) for c in causes]


def _weigh(d: Course, gap: Gap | None, cause: str) -> Candidate:
    if not len(d):
        return Candidate(cause, Verdict.UNKNOWN, "sampler and trainer are not compared", ("logprobs/mismatch_mean",))
    if gap is None:
        level = float(np.median(d.values[-5:]))
        return Candidate(cause, Verdict.RULED_OUT, f"sampler and trainer agree (mean |d| {level:.2g} nats)")
    if gap.cause == cause:
        return Candidate(cause, Verdict.SUPPORTED, f"mean |d| is {gap.level:.2g} nats: {gap.reason}")
    if cause == "stale_cache":
        return Candidate(cause, Verdict.UNKNOWN, "the gap is not logged for prompts seen before and new ones apart")
    return Candidate(cause, Verdict.RULED_OUT, f"{_SAYS[cause]}: {gap.reason}")


def _some_points(d: Course) -> int:
    return int(np.median(np.diff(d.steps))) * 3 if len(d) > 1 else 0


def _weigh_age(history: History, onset: int) -> Candidate:
    cause = "data_too_old"
    ages = history.course("schedule/staleness_mean").finite
    if not len(ages):
        if history.facts.asynchronous is False:
            return Candidate(cause, Verdict.RULED_OUT, "sampling and training alternate")
        return Candidate(cause, Verdict.UNKNOWN, "the age of the data is not logged", ("schedule/staleness_mean",))
    now = float(np.median(ages.values[ages.steps >= onset][-10:])) if (ages.steps >= onset).any() else float("nan")
    aged = aged_by(history, onset)
    if now >= 2.0 and (aged >= 0.5 or not (ages.steps < onset).any()):
        return Candidate(cause, Verdict.SUPPORTED, f"the data is {now:.1f} versions old")
    return Candidate(cause, Verdict.RULED_OUT, f"the data is {now:.1f} versions old and did not age")

"""Attempts that cannot be graded: a fault of the grader, never a reward of 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import last_run, rolling_mean
from posttrain.faultmap.patterns_reward import compact
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "grader_failing"
TOLERATED = 0.02
LOST = 0.2
WINDOW = 4


def judge(history: History) -> Sequence[Finding]:
    """A share of ungraded attempts that does not go away, or grading processes that die again and again."""
    share = compact(_ungraded(history))
    found = _share(history, share) if len(share) else None
    if found is None:
        found = _timeouts(history)
    return () if found is None else (found,)


def _ungraded(history: History) -> Course:
    """Share of attempts without a grade, from counts where the share itself is not logged."""
    share = history.course("reward/ungradable_share").finite
    counts = [history.course(name).finite for name in ("reward/ungradable", "reward/failed")]
    counts = [c for c in counts if len(c)]
    if len(share) or not counts:
        return share
    lost = np.sum([np.nan_to_num(c.on(counts[0].steps)) for c in counts], axis=0)
    graded = history.course("reward/graded").finite
    total = (
        lost + graded.on(counts[0].steps) if len(graded) else history.course("rollout/trajectories").on(counts[0].steps)
    )
    return Course("reward/ungradable_share", counts[0].steps, lost / np.maximum(total, 1.0)).finite


def _share(history: History, share: Course) -> Finding | None:
    mean = rolling_mean(share.values, WINDOW)
    # One bad point may be a hiccup: two of the last four must show it, unless most attempts failed.
    often = WINDOW * rolling_mean((share.values > 0).astype(np.float64), WINDOW) >= 2
    often &= np.arange(len(mean)) >= WINDOW - 1
    bad = ((mean > TOLERATED) & often) | (share.values > 0.5)
    start = last_run(bad)
    if start is None:
        return None
    while start > 0 and share.values[start - 1] > 0:
        start -= 1
    now = float(mean[-1])
    onset = int(share.steps[start])
    severity = Severity.CRITICAL if now >= LOST else Severity.WARN
    when = "since the first step" if start == 0 else f"since step {onset}"
    summary = f"{now:.1%} of the attempts could not be graded in the last points ({when}); they count as no reward."
    evidence = Observation("reward/ungradable_share", int(share.steps[-1]), now, "attempts without a grade")
    return _finding(history, onset, severity, summary, evidence)


def _timeouts(history: History) -> Finding | None:
    """Graders killed in most steps, and more often than at first."""
    for name in ("reward/grader_timeouts", "reward/grader_restarts"):
        c = compact(history.course(name))
        if len(c) < 4:
            continue
        often = rolling_mean((c.values > 0).astype(np.float64), WINDOW) >= 0.75
        if not often[-1] or float(rolling_mean(c.values, WINDOW)[-1]) < 1.0:
            continue
        start = int(np.flatnonzero(~often)[-1]) + 1 if not bool(often.all()) else 0
        onset = int(c.steps[max(0, min(start, len(c) - 1) - WINDOW + 1)])
        now = float(rolling_mean(c.values, WINDOW)[-1])
        what = "was killed for taking too long" if name.endswith("timeouts") else "had to be started again"
        summary = f"A grader {what} {now:.3g} times a step in the last points (since step {onset})."
        return _finding(
            history, onset, Severity.WARN, summary, Observation(name, int(c.steps[-1]), now, "again and again")
        )
    return None


def _finding(history: History, onset: int, severity: Severity, summary: str, evidence: Observation) -> Finding:
    scene = scene_of(history, onset)
    candidate: Candidate = supported("grader_failing", evidence.shows)
    rows = causes_of(scene, "ungradable", candidate)
    return Finding(NAME, "ungradable", "grader_failing", severity, 0.85, summary, onset, None, (evidence,), rows)


DETECTOR = Detector(
    NAME,
    "ungradable",
    "Grader fails",
    "More than 2 % of the attempts without a grade (mean of 4 points) in at least two of the last four points, or more "
    "than half in one; critical from 20 % on. Or graders killed or started again in three of the last four points.",
    (("reward/ungradable_share", "reward/failed", "reward/ungradable", "reward/grader_timeouts",
      "reward/grader_restarts"),),
    judge,
    ("reward/failed", "reward/grader_timeouts"),
)  # fmt: skip

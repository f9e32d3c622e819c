"""Attempts that end at the cap: a missed stop token, a cap too short, or a metric that counts wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.evidence import observed_at
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.gap import find_gap
from posttrain.faultmap.history import Course, History, Mask, Values
from posttrain.faultmap.patterns import first_run, rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, start_level
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.weighing import ruled_out, scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "truncation"
SYMPTOM = "truncation"
_BESIDE = {
    "rollout/length_max": "the longest attempt",
    "rollout/length_mean": "the mean attempt",
    "reward/mean": "the reward meanwhile",
}
HALF = 0.5
SURE = 0.8
"""Confidence where the numbers contradict each other: the metric itself is wrong."""
JUMP = 0.35
RISING, LONG = 0.3, 10
NEARLY_ALL = 0.9
SOLVED = 0.9
START_POINTS = 10


def judge(history: History) -> Sequence[Finding]:
    """At least half of the attempts cut: from the start without getting better, or from some step on."""
    cut = first_of(history, "rollout/truncated_share")
    if len(cut) < 8:
        return ()
    smooth = rolling_median(cut.values, 5)
    p = progress(history, cut.steps)
    start = start_level(cut.values, 5)
    jumped = _jumped(cut.values)
    if jumped is not None:
        return (_finding(history, cut, jumped, p, is_late=True),)
    late = np.arange(len(cut)) >= 5
    calm = ~(cut.values > start + 0.15)
    risen = episode((rolling_median(cut.values, 3) >= max(HALF, start + 0.3)) & late, 3, calm)
    if risen is None:
        risen = episode(_keeps_rising(smooth, start), LONG, calm)
    if risen is not None:
        return (_finding(history, cut, risen, p, is_late=True),)
    found = episode(_from_start(smooth, start, p), 1, np.zeros(len(cut), np.bool_))
    return () if found is None else (_finding(history, cut, found, p, is_late=False),)


def _keeps_rising(smooth: Values, start: float) -> Mask:
    """Three tenths cut and more with every quarter of the run: it does not stop there by itself."""
    point = np.arange(len(smooth))
    quarter_ago = smooth[point - np.maximum(point // 4, 10).clip(max=point)]
    return (smooth >= max(RISING, start + 0.25)) & (smooth >= quarter_ago + 0.05) & (point >= 4 * LONG)


def _jumped(values: Values) -> Episode | None:
    """Three points in a row, each far above both points before them: nothing a policy learns looks like that."""
    if len(values) < 5:
        return None
    now = np.min(np.lib.stride_tricks.sliding_window_view(values, 3)[2:], axis=1)
    before = np.max(np.lib.stride_tricks.sliding_window_view(values, 2)[: len(now)], axis=1)
    first = np.flatnonzero(now - before >= JUMP)
    if not len(first):
        return None
    onset = int(first[0]) + 2
    high = np.flatnonzero(rolling_median(values, 5) >= 0.5 * float(np.median(values[onset : onset + 3])))
    last = int(high[-1]) if len(high) else onset + 2
    return Episode(onset, onset + 2, None if len(values) - 1 - last < 5 else last)


def _from_start(smooth: Values, start: float, p: Progress) -> Mask:
    """High at every point so far and not on its way down: nearly all for ten points, or half for 20 without a gain."""
    count = np.arange(1, len(smooth) + 1)
    always = np.logical_and.accumulate(smooth >= HALF) & (smooth >= start - 0.05)
    nearly_all = (smooth >= NEARLY_ALL) & (count >= START_POINTS)
    in_vain = p.stands & ~p.saturated & (count >= 2 * START_POINTS)
    return always & (nearly_all | in_vain)


def _finding(history: History, cut: Course, found: Episode, p: Progress, *, is_late: bool) -> Finding:
    at, onset = found.point(cut.steps), int(cut.steps[found.onset])
    share = float(np.max(rolling_median(cut.values, 5)[found.alarm : at + 1]))
    cause, confidence, reason = _why(history, cut, found, share, p, is_late)
    scene = scene_of(history, onset)
    other = {"stop_token_missed": "length_cap_too_short", "length_cap_too_short": "stop_token_missed"}.get(cause)
    judged: list[Candidate] = [supported(cause, reason)]
    if other is not None and confidence >= 0.7:
        judged.append(ruled_out(other, reason))
    return Finding(
        NAME,
        SYMPTOM,
        cause,
        _severity(p, found, at, cause, is_contradicted=confidence >= SURE, is_late=is_late),
        confidence,
        f"{share:.0%} of the attempts count as cut off: {reason}.",
        onset,
        found.end(cut.steps),
        _evidence(history, cut, at, found.onset),
        causes_of(scene, SYMPTOM, *judged),
    )


def _why(
    history: History, cut: Course, found: Episode, share: float, p: Progress, is_late: bool
) -> tuple[str, float, str]:
    at = found.point(cut.steps)
    step = int(cut.steps[at])
    longest, mean = _newest(history, "rollout/length_max", step), _newest(history, "rollout/length_mean", step)
    cap = history.facts.max_new_tokens
    if cap is not None and longest is not None and longest < 0.9 * cap:
        return "stop_token_missed", 0.9, f"the longest has {longest:.0f} tokens, far under the cap of {cap}"
    if longest is not None and mean is not None and share >= 0.95 and mean < 0.75 * longest:
        return "stop_token_missed", 0.8, f"their mean length is {mean:.0f}, but the longest has {longest:.0f} tokens"
    if is_late:
        return _why_late(history, cut, found, share)
    if share >= 0.95 and p.known and float(p.attained_best[at]) >= 0.3:
        won = f"{float(p.attained_best[at]):.0%} of what is possible was won"
        return "stop_token_missed", 0.55, f"yet {won}: the answer is there, and the attempt does not end"
    return "length_cap_too_short", 0.6, "since the first step, and not fewer with training"


def _why_late(history: History, cut: Course, found: Episode, share: float) -> tuple[str, float, str]:
    onset = found.onset
    before = float(np.median(cut.values[max(onset - 5, 0) : onset])) if onset else float("nan")
    jump = float(np.median(cut.values[onset : onset + 3])) - before
    gap = find_gap(history)
    near = gap is not None and abs(gap.onset_step - int(cut.steps[onset])) <= 3 * _spacing(cut)
    if gap is not None and near and gap.cause in ("weights_corrupted_in_sync", "stale_weights"):
        return gap.cause, 0.6, f"sampler and trainer parted in the same steps ({gap.reason})"
    if jump >= JUMP and (shorter := _is_shorter(history, int(cut.steps[onset]))):
        return "length_cap_too_short", 0.75, f"the share went from {before:.0%} to {before + jump:.0%} as {shorter}"
    if jump >= JUMP:
        return "stop_token_missed", 0.75, f"the share went from {before:.0%} to {before + jump:.0%} at once"
    if share >= 0.95 and before < 0.5:
        return "length_cap_too_short", 0.5, f"the share grew from {before:.0%} as attempts became longer"
    return "length_cap_too_short", 0.55, f"the share grew from {before:.0%}"


def _is_shorter(history: History, step: int) -> str:
    """What says that the cap came down to the attempts: a missed stop token would make the longest ones longer."""
    longest = history.course("rollout/length_max").finite
    mean = history.course("rollout/length_mean").finite
    for name, c, share in (("the longest attempt", longest, 0.95), ("the mean attempt", mean, 0.9)):
        old, new = c.between(-1, step - 1).values[-8:], c.between(step, 2**62).values[:3]
        if len(old) and len(new) and float(np.median(new)) < share * float(np.median(old)):
            return f"{name} went from {np.median(old):.3g} to {np.median(new):.3g} tokens"
    return ""


def _severity(p: Progress, found: Episode, at: int, cause: str, *, is_contradicted: bool, is_late: bool) -> Severity:
    if is_late and p.known and bool(p.fallen()[at]):
        return Severity.CRITICAL if bool(p.lost[found.onset : at + 1].any()) else Severity.WARN
    if is_contradicted:
        return Severity.WARN
    if is_late:
        harmless = cause != "stop_token_missed" and p.known and bool(p.attained[at] >= SOLVED)
        return Severity.INFO if harmless else Severity.WARN
    # Fixed-length answers and tasks learnt in spite of the cap: worth knowing. Without a gain the cap is in the way.
    waited = np.arange(at + 1) >= 2 * START_POINTS - 1
    in_vain = first_run(waited & (p.stands & ~p.saturated)[: at + 1], 5) is not None if p.known else bool(waited[at])
    return Severity.WARN if in_vain and found.last is None else Severity.INFO


def _newest(history: History, name: str, step: int) -> float | None:
    values = history.course(name).finite.between(-1, step).values[-5:]
    return float(np.median(values)) if len(values) else None


def _spacing(course: Course) -> int:
    return int(np.median(np.diff(course.steps))) if len(course) > 1 else 1


def _evidence(history: History, cut: Course, at: int, onset: int) -> tuple[Observation, ...]:
    step = int(cut.steps[at])
    return (
        Observation(cut.name, int(cut.steps[onset]), float(cut.values[onset]), "where it began"),
        Observation(cut.name, step, float(cut.values[at]), "its newest value"),
        *observed_at(history, step, _BESIDE),
    )


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Attempts are cut off, or count as if they were",
    pattern="90 % cut at each of the first ten points (for information), or half at each of the first 20 without a "
    "gain in reward, and not falling; or the share rises by 30 points to at least half, or by 35 within one step, or "
    "by 25 points to three tenths and on and on, and stays so for three points. A longest attempt under 90 % of the "
    "cap, or a mean under 75 % of the longest with all cut, means a stop token that is not recognised.",
    needs=(("rollout/truncated_share",),),
    judge=judge,
    sharpened_by=("rollout/length_max", "rollout/length_mean", "reward/mean", "reward/success"),
    yields_to=(
        "mismatch",
        "reward_hacking",
        "reward_collapse",
        "learning_rate",
        "constant_policy",
        "entropy_explosion",
    ),
)

"""The reward rises and the task is not solved better: the policy is paid for something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import reward_dead
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.held_out_gap import GAIN, HeldOutGap, held_out_gap
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.paid_length import paid_length
from posttrain.faultmap.patterns import noise, rolling_mean, rolling_median
from posttrain.faultmap.patterns_reward import compact, held_out, newest_step, part_names, reward_course, reward_scale
from posttrain.faultmap.patterns_samples import Mark, marks
from posttrain.faultmap.shift import NEAR, Text, find_shift
from posttrain.faultmap.weighing import Scene, scene_of, supported, unknown, weigh
from posttrain.faultmap.weighing_update import causes_of

NAME = "reward_hacking"
JUMP = 0.3
WINDOW = 5
PLATEAU = 6
AFTER = 3
TASK = re.compile(r"task|correct|accura|exact|answer|solve|match|success|outcome|gold|verif|equal", re.IGNORECASE)
"""Names that parts of rewards for the task itself usually have."""


def judge(history: History) -> Sequence[Finding]:
    """The strongest evidence first: pay for length, held-out scores, then parts, then texts, then the jump alone."""
    reward = compact(reward_course(history))
    if len(reward) < 4 or reward_dead.judge(history):
        return ()
    found = _length(history) or _held_out(history, reward) or _task_falls(history, reward)
    rise = _rise(history, reward) if found is None else None
    if rise is not None:
        found = _texts(history, rise) or _jump_alone(history, reward)
    return () if found is None else (found,)


@dataclass(frozen=True, slots=True)
class Rise:
    """A rise of the reward: from ``before`` to ``now``, half of it passed for good at step ``onset``."""

    onset: int
    before: float
    now: float
    share: float


def _rise(history: History, reward: Course) -> Rise | None:
    """Lowest level of the course so far against the newest: a rise that counts, or ``None``."""
    span = reward_scale(history).span
    width = max(3, len(reward) // 10)
    if len(reward) < 2 * width:
        return None
    now = float(np.mean(reward.values[-width:]))
    means = np.convolve(reward.values[:-width], np.full(min(width, len(reward) - width), 1.0 / width), "valid")
    before = float(means.min())
    error = noise(reward.values) * np.sqrt(2.0 / width)
    if now - before < max(GAIN * span, 4.0 * error):
        return None
    under = np.flatnonzero(reward.values < 0.5 * (before + now))
    onset = int(reward.steps[min(int(under[-1]) + 1, len(reward) - 1)]) if len(under) else int(reward.steps[0])
    return Rise(onset, before, now, (now - before) / span)


def _length(history: History) -> Finding | None:
    """The grading changed at once, and since then longer texts earn more."""
    paid = paid_length(history)
    if paid is None:
        return None
    change = paid.change
    scene = scene_of(history, change.step)
    was = "" if paid.before is None else f" (before: {paid.before:.2f})"
    reason = f"within groups the reward follows the length with a correlation of {paid.now:.2f}{was}"
    summary = (
        f"{change.signal} went from {change.before:.3g} to {change.after:.3g} within one point while the text looked "
        f"as before, and since then {reason}."
    )
    evidence = (
        Observation(change.signal, change.step, change.after, f"{change.before:.3g} before: the grading changed"),
        Observation("reward/mean", paid.step, paid.now, f"correlation with length in {paid.groups} groups of samples"),
    )
    judged = supported("reward_hacked", reason)
    return _finding(scene, "reward_jump", Severity.WARN, 0.8, summary, evidence, judged)


def _held_out(history: History, reward: Course) -> Finding | None:
    """A held-out score that falls or does not follow."""
    for score in held_out(history):
        gap = held_out_gap(history, reward, compact(score))
        if gap is not None and (gap.falls or not _has_other_tasks(history, gap.onset)):
            return _gap_found(history, reward, gap)
    return None


def _has_other_tasks(history: History, onset: int) -> bool:
    """At that moment tasks came whose text is another and which are solved as whole groups: the score is of others."""
    shift = find_shift(history)
    if shift is None or shift.text is not Text.CHANGED or not (shift.rose and shift.silenced > 0):
        return False
    steps = history.steps
    return abs(int(np.searchsorted(steps, shift.step)) - int(np.searchsorted(steps, onset))) <= NEAR


def _gap_found(history: History, reward: Course, gap: HeldOutGap) -> Finding:
    scene, score = scene_of(history, gap.onset), gap.score
    how = "fell" if gap.falls else "did not follow"
    summary = (
        f"The reward went from {gap.paid[0]:.3g} to {gap.paid[1]:.3g}, and the held-out score {score.name} {how} "
        f"({gap.solved[0]:.3g} to {gap.solved[1]:.3g})."
    )
    evidence = (
        Observation(score.name, int(score.steps[-1]), float(score.values[-1]), how),
        Observation(reward.name, int(reward.steps[-1]), float(reward.values[-1]), "did not fall"),
    )
    reason = f"the reward gained {gap.gain:.0%} of its range, the held-out score {gap.follow:.0%}"
    severity = Severity.CRITICAL if gap.falls and gap.follow <= -0.1 else Severity.WARN
    confidence = 0.85 if gap.falls else 0.7
    return _finding(scene, "held_out_flat", severity, confidence, summary, evidence, supported("reward_hacked", reason))


def _task_falls(history: History, reward: Course) -> Finding | None:
    """The part that stands for the task (or the success) falls from its best, and the total does not."""
    span = reward_scale(history).span
    names = [f"reward/part/{p}/mean" for p in part_names(history) if TASK.search(p)] + ["reward/success"]
    for name in names:
        c = compact(history.course(name))
        if len(c) < 2 * WINDOW or name == reward.name:
            continue
        level, paid = rolling_mean(c.values, WINDOW), rolling_mean(reward.on(c.steps), WINDOW)
        best = int(np.argmax(level[WINDOW - 1 :])) + WINDOW - 1
        before, now = float(level[best]), float(level[-1])
        error = noise(c.values) * np.sqrt(2.0 / WINDOW)
        own = noise(reward.values) * np.sqrt(2.0 / WINDOW)
        if before - now <= max(0.25 * before, 4.5 * error) or not paid[-1] >= paid[best] - max(own, 0.02 * span):
            continue
        over = np.flatnonzero(level > 0.5 * (before + now))
        scene = scene_of(history, int(c.steps[min(int(over[-1]) + 1, len(c) - 1)]))
        summary = (
            f"{name} fell from {before:.3g} to {now:.3g} while the reward went from {paid[best]:.3g} to "
            f"{paid[-1]:.3g}: something other than the task is paid."
        )
        evidence = (Observation(name, int(c.steps[-1]), now, "falls while the total does not"),)
        judged = supported("reward_hacked", f"{name} fell from {before:.3g} to {now:.3g}")
        return _finding(scene, "reward_jump", Severity.WARN, 0.75, summary, evidence, judged)
    return None


def _texts(history: History, rise: Rise) -> Finding | None:
    """Paid texts now share what those before the rise did not."""
    if history.samples is None:
        return None
    newest = newest_step(history)
    steps = [s for s in history.samples.steps() if s <= newest]
    early = [s for s in steps if s < rise.onset]
    if not early or steps[-1] < rise.onset:
        return None
    before = {m.name: m for m in marks(history.samples.read(early[0]))}
    scale = reward_scale(history)
    for mark in marks(history.samples.read(steps[-1])):
        was = before.get(mark.name)
        if _is_paid(mark, scale.bottom, scale.span) and mark.share >= 0.5 and (was is None or was.share <= 0.2):
            scene = scene_of(history, rise.onset)
            was_share = 0.0 if was is None else was.share
            reason = f"{mark.share:.0%} of the texts {mark.name} (before: {was_share:.0%}) and earn {mark.reward:.3g}"
            summary = f"The reward rose from {rise.before:.3g} to {rise.now:.3g}, and {reason}."
            evidence = (Observation("reward/mean", steps[-1], mark.reward, f"mean of the texts that {mark.name}"),)
            return _finding(
                scene, "reward_jump", Severity.WARN, 0.7, summary, evidence, supported("reward_hacked", reason)
            )  # fmt: skip
    return None


def _is_paid(mark: Mark, bottom: float, span: float) -> bool:
    """Texts with the mark earn nearly all there is, and no less than the others.

    An ending or a tag alone is also what a policy learns that was asked for a format: there the others must earn less.
    """
    place = (mark.reward - bottom) / span
    if mark.name.startswith(("end in", "repeat an answer")):
        return place >= 0.8 and mark.share < 0.98 and mark.reward - mark.rest >= 0.3 * span
    return place >= 0.8 and (np.isnan(mark.rest) or mark.reward >= mark.rest)


def _jump_index(values: Values, span: float) -> int | None:
    """The point of the largest jump off a plateau, most of it in one point and to a level not seen before."""
    i = np.arange(PLATEAU, len(values) - AFTER + 1)
    if not len(i):
        return None
    flat = rolling_median(values, 2 * PLATEAU)[i - 1]
    step = rolling_mean(values, AFTER)[i + AFTER - 1] - flat
    wander = np.abs(rolling_mean(values, PLATEAU)[i - 1] - rolling_mean(values, 2 * PLATEAU)[i - 1])
    seen = np.maximum.accumulate(rolling_median(values, AFTER))[i - AFTER]
    is_new = seen < flat + 0.7 * step
    is_at_once = values[i] - values[i - 1] >= 0.6 * step
    is_large = step >= max(JUMP * span, 5.0 * noise(values))
    fits = np.where(is_large & is_new & is_at_once & (wander <= 0.1 * step), step, -np.inf)
    best = int(np.argmax(fits))
    return int(i[best]) if np.isfinite(fits[best]) else None


def _jump_alone(history: History, reward: Course) -> Finding | None:
    """A jump that nothing explains: worth a look, and a held-out score."""
    index = _jump_index(reward.values, reward_scale(history).span)
    if index is None:
        return None
    onset = int(reward.steps[index])
    scene = scene_of(history, onset)
    before = float(np.median(reward.values[max(0, index - 2 * PLATEAU) : index]))
    now = float(np.mean(reward.values[index : index + AFTER]))
    summary = f"The reward jumped off a plateau from {before:.3g} to {now:.3g} within {AFTER} logged points."
    evidence = (Observation(reward.name, onset, float(reward.values[index]), "far above the points before"),)
    mixed = weigh(scene, "task_mix_changed")
    if scene.behaviour.is_text_known and not scene.behaviour.has_text_changed:
        summary += " The sampled text did not change: the grader or the tasks did."
        return _finding(scene, "reward_jump", Severity.INFO, 0.5, summary, evidence, mixed, cause="task_mix_changed")
    summary += " Whether the task is solved better cannot be judged: log a held-out score or the parts of the reward."
    doubt = unknown("reward_hacked", "evaluation/{environment}/reward_mean", "reward/part/{part}/mean")
    return _finding(scene, "reward_jump", Severity.INFO, 0.3, summary, evidence, doubt)


def _finding(
    scene: Scene, symptom: str, severity: Severity, confidence: float, summary: str,
    evidence: tuple[Observation, ...], judged: Candidate, cause: str = "reward_hacked",
) -> Finding:  # fmt: skip
    shown = evidence + tuple(d.observation() for d in scene.behaviour.departures if d.trait.is_text)
    rows = causes_of(scene, symptom, judged)
    return Finding(NAME, symptom, cause, severity, confidence, summary, scene.onset, None, shown, rows)


DETECTOR = Detector(
    NAME,
    "reward_jump",
    "Reward rises, the task does not get better",
    "(a) The reward gains at least 15 % of its range and the held-out score less than a quarter of that (in odds too, "
    "and clearly less than half of it given its error); or (b) the held-out score, the share of successes or the part "
    "of the reward that stands for the task falls (parts by a quarter) while the reward does not; or (c) after a gain "
    "at least half of the sampled texts share a mark they did not have before (same text or ending for different "
    "prompts, empty, repeated tags, lists of numbers, the prompt) and earn at least 80 % of the range; or (d) a "
    "measure of the reward jumps within one point while the text is as before, and since then reward and length "
    "correlate by 0.5 within groups, at least 0.3 more than before. A jump of 30 % of the range off a plateau without "
    "any of these is info: a held-out score would decide.",
    (("reward/mean", "reward/success"),),
    judge,
    ("evaluation/{environment}/reward_mean", "evaluation/{environment}/pass@{k}", "reward/part/{part}/mean"),
    ("grader_failing", "reward_dead", "reward_shift"),
)

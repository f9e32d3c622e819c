"""The reward rises and the task is not solved better: the policy is paid for something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import reward_dead
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import noise, rolling_mean, rolling_median
from posttrain.faultmap.patterns_reward import compact, held_out, newest_step, part_names, reward_course, reward_scale
from posttrain.faultmap.patterns_samples import Mark, marks
from posttrain.faultmap.weighing import Scene, differential, scene_of, supported, unknown, weigh

NAME = "reward_hacking"
GAIN = 0.15
"""Least rise of the reward, as a share of its range."""
FOLLOWS = 0.25
"""A held-out score that gains less than this share of what the reward gained does not follow."""
SIGMAS = 2.5
FALL_SIGMAS = 3.5
UNKNOWN_ERROR = 0.06
"""Standard error taken for a held-out score without an interval: a share of 64 samples at one half."""
JUMP = 0.3
WINDOW = 5
PLATEAU = 6
TASK = re.compile(r"task|correct|accura|exact|answer|solve|match|success|outcome|gold|verif|equal", re.IGNORECASE)
"""Names that parts of rewards for the task itself usually have."""


def judge(history: History) -> Sequence[Finding]:
    """The strongest evidence first: held-out scores, then parts, then texts, then the jump alone."""
    reward = compact(reward_course(history))
    if len(reward) < 4 or reward_dead.judge(history):
        return ()
    found = _held_out(history, reward) or _task_falls(history, reward)
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


def _held_out(history: History, reward: Course) -> Finding | None:
    for score in held_out(history):
        if len(score) >= 2:
            found = _compare(history, reward, score)
            if found is not None:
                return found
    return None


def _compare(history: History, reward: Course, score: Course) -> Finding | None:
    """The split of the evaluations at which the reward gained most: did the score gain with it?"""
    paid = _paid_at(reward, score)
    n = len(score)
    span = reward_scale(history).span
    width = _unit(score, span)
    means = [
        (values[i:].mean() - values[:i].mean()) for values in (paid / span, score.values / width) for i in range(1, n)
    ]
    gains, follows = np.array(means[: n - 1]), np.array(means[n - 1 :])
    noisy = _error(history, score, span) / width
    own = noise(reward.values) / span * np.sqrt(2.0 / max(2, len(reward) // n))
    best, falls = _split(gains, follows, noisy, own)
    if best is None:
        return None
    gain_share, follow_share = float(gains[best - 1]), float(follows[best - 1])
    error = noisy * np.sqrt(1.0 / best + 1.0 / (n - best))
    lags = (
        follow_share <= FOLLOWS * gain_share
        and 0.5 * gain_share - follow_share > SIGMAS * error
        and _odds_lag(paid, score, best, span)
    )
    if not (falls or lags):
        return None
    onset = _onset(reward, paid[:best].mean(), paid[best:].mean())
    if falls:  # somewhere behind the last evaluation that was still good
        onset = int(reward.steps[min(np.searchsorted(reward.steps, score.steps[best - 1] + 1), len(reward) - 1)])
    scene = scene_of(history, onset)
    before, after = score.values[:best].mean(), score.values[best:].mean()
    how = "fell" if falls else "did not follow"
    summary = (
        f"The reward went from {paid[:best].mean():.3g} to {paid[best:].mean():.3g}, and the held-out score "
        f"{score.name} {how} ({before:.3g} to {after:.3g})."
    )
    evidence = (
        Observation(score.name, int(score.steps[-1]), float(score.values[-1]), how),
        Observation(reward.name, int(reward.steps[-1]), float(reward.values[-1]), "did not fall"),
    )
    reason = f"the reward gained {gain_share:.0%} of its range, the held-out score {follow_share:.0%}"
    severity = Severity.CRITICAL if falls and -follow_share >= 0.1 else Severity.WARN
    confidence = 0.85 if falls else 0.7
    return _finding(scene, "held_out_flat", severity, confidence, summary, evidence, supported("reward_hacked", reason))


def _split(gains: Values, follows: Values, error: float, own: float) -> tuple[int | None, bool]:
    """Number of evaluations before the split to look at, and whether the score fell there.

    First the split with the greatest fall of the score, if it is clear and the reward did not fall with it; else
    that with the greatest gain of the reward, if that counts.
    """
    n = len(gains) + 1
    before = np.arange(1, n)
    errors = error * np.sqrt(1.0 / before + 1.0 / (n - before))
    fallen = np.where(gains > -own, -follows / errors, -np.inf)
    worst = int(np.argmax(fallen))
    if fallen[worst] > FALL_SIGMAS and -follows[worst] > 0.05:
        return worst + 1, True
    most = int(np.argmax(gains))
    return (most + 1, False) if gains[most] >= max(GAIN, 3.0 * own) else (None, False)


def _paid_at(reward: Course, score: Course) -> np.ndarray:
    """Mean reward of the steps up to each evaluation since the one before it (for the first: of the first points)."""
    paid: list[float] = []
    previous = -1
    for index, step in enumerate(score.steps):
        part = reward.between(previous + 1, int(step)).values
        near = part[-max(3, len(part) // 2) :] if index else part[-3:]
        if not len(near):
            near = reward.values[:3] if index == 0 else reward.between(-1, int(step)).values[-3:]
        paid.append(float(np.mean(near)) if len(near) else float(reward.values[0]))
        previous = int(step)
    return np.array(paid)


def _error(history: History, score: Course, span: float) -> float:
    """Standard error of one evaluation: from its interval, else the larger of its own noise and a default."""
    low, high = history.course(f"{score.name}_low").finite, history.course(f"{score.name}_high").finite
    if len(low) and len(high):
        width = high.on(score.steps) - low.on(score.steps)
        width = width[np.isfinite(width)]
        if len(width):
            return max(float(np.median(width)) / 3.92, 0.005)
    default = UNKNOWN_ERROR * _unit(score, span)
    return max(noise(score.values), default) if len(score) >= 5 else default


def _unit(score: Course, span: float) -> float:
    """Width of the score's scale: that of the reward for a mean reward, else 1."""
    return span if score.name.endswith("reward_mean") else 1.0


def _odds_lag(paid: np.ndarray, score: Course, best: int, span: float) -> bool:
    """Hard tasks gain little in share although as much in odds: between shares, the odds must lag too."""
    values = score.values
    if min(paid.min(), values.min()) < 0 or max(paid.max(), values.max()) > 1 or span > 1.0:
        return True

    def odds(part: np.ndarray) -> float:
        p = float(np.clip(part.mean(), 0.01, 0.99))
        return float(np.log(p / (1.0 - p)))

    gain, follow = odds(paid[best:]) - odds(paid[:best]), odds(values[best:]) - odds(values[:best])
    return follow <= 0.35 * gain


def _onset(reward: Course, before: float, after: float) -> int:
    """First point of the stretch that stays in the upper half of the rise, judged on means of three."""
    under = np.flatnonzero(reward.values < before + 0.5 * (after - before))
    under = under[under < len(reward) - 1]
    return int(reward.steps[int(under[-1]) + 1]) if len(under) else int(reward.steps[0])


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


def _jump_alone(history: History, reward: Course) -> Finding | None:
    """A jump off a plateau that nothing explains: worth a look, and a held-out score."""
    span, n = reward_scale(history).span, len(reward)
    sigma = noise(reward.values)
    width = 3
    means = rolling_median(reward.values, width)
    best: tuple[float, int] | None = None
    for i in range(PLATEAU, n - width + 1):
        flat = reward.values[max(0, i - 12) : i]
        step = float(np.mean(reward.values[i : i + width]) - np.median(flat))
        wander = abs(float(np.mean(flat[len(flat) // 2 :]) - np.mean(flat[: len(flat) // 2])))
        is_return = float(np.max(means[: i - 2])) >= float(np.median(flat)) + 0.7 * step
        if (
            not is_return
            and step >= max(JUMP * span, 5.0 * sigma)
            and wander <= 0.2 * step
            and (best is None or step > best[0])
        ):
            best = (step, i)
    if best is None:
        return None
    onset = int(reward.steps[best[1]])
    scene = scene_of(history, onset)
    before = float(np.median(reward.values[max(0, best[1] - 12) : best[1]]))
    now = float(np.mean(reward.values[best[1] : best[1] + width]))
    summary = f"The reward jumped off a plateau from {before:.3g} to {now:.3g} within {width} logged points."
    evidence = (Observation(reward.name, onset, float(reward.values[best[1]]), "far above the points before"),)
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
    rows = differential(scene, symptom, judged)
    return Finding(NAME, symptom, cause, severity, confidence, summary, scene.onset, None, shown, rows)


DETECTOR = Detector(
    NAME,
    "reward_jump",
    "Reward rises, the task does not get better",
    "(a) The reward gains at least 15 % of its range and the held-out score less than a quarter of that (in odds too, "
    "and clearly less than half of it given its error); or (b) the held-out score, the share of successes or the part "
    "of the reward that stands for the task falls (parts by a quarter) while the reward does not; or (c) after a gain "
    "at least half of the sampled texts share a mark they did not have before (same text or ending for different "
    "prompts, empty, repeated tags, lists of numbers, the prompt) and earn at least 80 % of the range. A jump of 30 % "
    "of the range off a plateau without any of these is info: a held-out score would decide.",
    (("reward/mean", "reward/success"),),
    judge,
    ("evaluation/{environment}/reward_mean", "evaluation/{environment}/pass@{k}", "reward/part/{part}/mean"),
    ("grader_failing", "reward_dead"),
)

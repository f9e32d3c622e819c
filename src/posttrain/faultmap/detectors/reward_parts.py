"""One part of the reward takes over: the task's part stands, or what is paid beside the parts follows the length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors.reward_hacking import TASK
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import noise, rolling_mean
from posttrain.faultmap.patterns_reward import compact, part_names, reward_course, reward_scale, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "reward_parts"
POINTS, WINDOW = 60, 15
FULL, NOTHING = 0.9, 0.1
RISE, LEARNT, STANDS = 0.3, 0.1, 0.15
LONGER, FLAT, FOLLOWS, BEND = 1.6, 0.1, 0.9, 0.25


def judge(history: History) -> Sequence[Finding]:
    """A part that dominates, a part that rises while the task's stands, or pay that no part explains."""
    courses = {name: compact(history.course(f"reward/part/{name}/mean")) for name in part_names(history)}
    parts = {name: c for name, c in courses.items() if len(c) >= POINTS}
    task = [c for name, c in parts.items() if TASK.search(name)]
    other = [c for name, c in parts.items() if not TASK.search(name)]
    found = _takes_over(task, other) or _dominates(history, task, other) if task and other else None
    found = found or _unexplained(history, list(parts.values()))
    if found is None:
        return ()
    onset, confidence, reason, seen = found
    rows = causes_of(scene_of(history, onset), "reward_jump", supported("reward_hacked", reason))
    return (
        Finding(
            NAME, "reward_jump", "reward_hacked", Severity.WARN, confidence, f"Since step {onset} {reason}.",
            onset, None,
            tuple(Observation(c.name, int(c.steps[-1]), float(c.values[-1]), "its newest value") for c in seen), rows,
        ),
    )  # fmt: skip


Found = tuple[int, float, str, tuple[Course, ...]]


def _level(c: Course) -> Values:
    return rolling_mean(c.values, WINDOW)


def _takes_over(task: Sequence[Course], other: Sequence[Course]) -> Found | None:
    """A part begins to rise when the task's part, which rose until then, stops."""
    for c in other:
        level = _level(c)
        before, now = float(level[len(level) // 5]), float(level[-1])
        under = np.flatnonzero(level <= before + 0.2 * (now - before))
        start = int(under[-1]) if len(under) else 0
        if now - float(level[start]) < RISE or start < len(level) // 5:
            continue
        step = int(c.steps[start])
        for t in task:
            old, new = t.between(-1, step).values, t.between(step, 2**62).values
            if len(old) < 2 * WINDOW or len(new) < 2 * WINDOW:
                continue
            learnt = float(old[-WINDOW:].mean() - old[:WINDOW].mean())
            since = float(new[-WINDOW:].mean() - new[:WINDOW].mean())
            if learnt >= LEARNT and since <= STANDS * (now - float(level[start])):
                text = f"{c.name} rose to {now:.2g} and {t.name}, which had won {learnt:.2g}, stands at {new[-1]:.2g}"
                return step, 0.65, text, (c, t)
    return None


def _dominates(history: History, task: Sequence[Course], other: Sequence[Course]) -> Found | None:
    """Nearly all that is paid is paid for another part, over the second half, while groups do differ."""
    signal = signal_share(history)
    loud = max(other, key=lambda c: float(np.median(c.values[len(c) // 2 :])))
    paid = float(np.median(loud.values[len(loud) // 2 :]))
    best = max(float(np.median(_level(t)[len(t) // 2 :])) for t in task)
    differs = signal.between(int(loud.steps[len(loud) // 2]), 2**62).values
    if not len(differs) or float(np.median(differs)) < 0.5 or paid < FULL or best > NOTHING * paid:
        return None
    text = (
        f"{loud.name} stands at {paid:.2g} and the part for the task at {best:.2g}: the reward is all but that one part"
    )
    return int(loud.steps[0]), 0.55, text, (loud, *task)


def _unexplained(history: History, parts: Sequence[Course]) -> Found | None:
    """The length grows from some step on, and with it a reward that the logged parts do not add up to."""
    reward, length = compact(reward_course(history)), compact(history.course("rollout/length_mean"))
    if not parts or len(reward) < POINTS or len(length) < POINTS:
        return None
    size = Course(length.name, length.steps, _level(length)).on(reward.steps)
    columns = np.stack([*(c.on(reward.steps) for c in parts), np.ones(len(reward))], axis=1)
    if not (bool(np.isfinite(columns).all()) and bool(np.isfinite(size).all())):
        return None
    flat = float(np.median(size[: len(size) // 5]))
    near = np.flatnonzero(size <= (1.0 + FLAT) * flat)
    start = int(near[-1]) if len(near) else 0
    if start < len(size) // 5 or start > len(size) - 2 * WINDOW or size[-1] < LONGER * flat:
        return None
    slow = abs(size[start] - size[0]) / max(start, 1)
    if slow > BEND * (size[-1] - size[start]) / (len(size) - start):
        return None
    weights = np.linalg.lstsq(columns[: start + 1], reward.values[: start + 1], rcond=None)[0]
    rest = reward.values - columns @ weights
    grown = float(np.mean(rest[-WINDOW:]))
    spread = max(noise(rest[: start + 1]), 0.01 * reward_scale(history).span)
    smooth = rolling_mean(rest, WINDOW)[start:]
    follows = float(np.corrcoef(smooth, size[start:])[0, 1]) if float(np.ptp(smooth)) > 0 else 0.0
    if grown < max(0.05 * reward_scale(history).span, 5.0 * spread / np.sqrt(WINDOW)) or not follows >= FOLLOWS:
        return None
    text = (
        f"attempts grew from {flat:.3g} to {size[-1]:.3g} tokens, and {grown:.2g} of the reward, which no part of it "
        f"accounts for, follows them (correlation {follows:.2f})"
    )
    return int(reward.steps[start]), 0.65, text, (reward, length)


DETECTOR = Detector(
    name=NAME,
    symptom="reward_jump",
    title="One part of the reward takes over",
    pattern="In 60 points or more: a part that is not the task's rises by 0.3 from some step on and the task's part, "
    "which had risen by 0.1 until then, gains less than 15 % of that; or another part stands at 0.9 over the second "
    "half, the task's part at a tenth of that, and half of the groups differ; or length, level at first, grows by 60 "
    "%, and what the reward pays beyond its parts follows it (correlation 0.9).",
    needs=(("reward/mean", "reward/success"),),
    judge=judge,
    sharpened_by=("reward/part/{part}/mean", "rollout/length_mean", "reward/zero_variance_groups"),
    yields_to=("grader_failing", "reward_dead", "reward_hacking", "reward_shift", "no_group_signal", "few_groups"),
)

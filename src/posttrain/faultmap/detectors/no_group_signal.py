"""Groups whose members all have the same reward: solved, too hard, or parts that cancel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import reward_dead
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.grading_change import grading_changes
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns import last_run, rolling_mean
from posttrain.faultmap.patterns_reward import (
    compact,
    part_names,
    reward_course,
    reward_scale,
    run_to_end,
    signal_share,
)
from posttrain.faultmap.weighing import Scene, scene_of, supported, unknown
from posttrain.faultmap.weighing_update import causes_of

NAME = "no_group_signal"
SILENT = 0.05
"""Share of groups with signal at or under which there is none to speak of."""
POINTS = 8
MOST = 0.6
MAX_STEP = 2**62


def judge(history: History) -> Sequence[Finding]:
    """What silences the groups at the end of the log."""
    signal = compact(signal_share(history))
    if not len(signal):
        return ()
    cancelling = _parts_cancel(history, signal)
    if cancelling:
        return cancelling
    failing = None if reward_dead.judge(history) else _failing_at_once(history)
    if failing is not None:
        return (failing,)
    start = last_run((rolling_mean(signal.values, POINTS) <= SILENT) & (np.arange(len(signal)) >= POINTS - 1))
    reward = reward_course(history)
    if start is None or not len(reward):
        return ()
    if reward_dead.judge(history):
        return ()
    first = start - POINTS + 1
    onset, points = int(signal.steps[first]), len(signal) - first
    scene = scene_of(history, onset)
    values = reward.between(onset, scene.now).values
    scale = reward_scale(history)
    place = float(scale.share(np.array([np.median(values if len(values) else reward.values[-1:])]))[0])
    return (_judged(scene, signal, points, _where(scene, place), place),)


def _failing_at_once(history: History) -> Finding | None:
    """From one point to the next most groups fail as a whole, while the text is as before, and it stays so."""
    failed = history.course("reward/all_fail_groups").finite
    if not len(failed):
        signal = signal_share(history)
        failed = Course(signal.name, signal.steps, 1.0 - signal.values)
    reward, scale = reward_course(history), reward_scale(history)
    for change in grading_changes(history):
        before, since = failed.between(-1, change.step - 1).values[-POINTS:], failed.between(change.step, MAX_STEP)
        paid = scale.share(reward.between(-1, change.step - 1).values[-POINTS:])
        left = scale.share(reward.between(change.step, MAX_STEP).values)
        if min(len(before), len(paid), len(left)) < 2 or len(since) < 3:
            continue
        usual, share, now = (float(np.mean(v)) for v in (before, since.values, since.values[-POINTS:]))
        place = float(np.mean(left[-POINTS:]))
        # Groups that fail are paid nothing: a reward that pays for something else keeps the mean up.
        is_unpaid = place <= min(0.5 * float(np.mean(paid)), 1.0 - now + 0.1)
        if min(share, now) < MOST or share - usual < 0.4 or not is_unpaid:
            continue
        scene = scene_of(history, change.step)
        reason = (
            f"from step {change.step} on {share:.0%} of the groups fail as a whole (before: {usual:.0%}), within one "
            "point and while the text looked as before: other tasks, or a grader that no longer pays for them"
        )
        summary = (
            f"Since step {change.step} no attempt succeeds in {share:.0%} of the groups; before, it was {usual:.0%}. "
            "It came at once, so the policy did not bring it about."
        )
        evidence = (
            Observation(failed.name, int(since.steps[0]), float(since.values[0]), "groups without one success"),
            Observation(change.signal, change.step, change.after, f"{change.before:.3g} before"),
        )
        rows = causes_of(scene, "no_group_signal", supported("task_mix_changed", reason))
        return Finding(
            NAME, "no_group_signal", "task_mix_changed", Severity.WARN, 0.6, summary, scene.onset, None, evidence, rows
        )  # fmt: skip
    return None


def _where(scene: Scene, place: float) -> tuple[str, Severity, float, Candidate]:
    """Cause by where the reward stands: top, bottom, or between (groups differ, members do not)."""
    if place >= 0.9:
        reason = f"the reward stands at {place:.0%} of its range: little is left to learn from these tasks"
        return "tasks_solved", Severity.INFO, 0.9, supported("tasks_solved", reason)
    if place <= 0.05:
        reason = f"the reward stands at {place:.0%} of its range: hardly an attempt succeeds"
        return "tasks_too_hard", Severity.WARN, 0.7, supported("tasks_too_hard", reason)
    between = f"some groups succeed and others fail as a whole (reward at {place:.0%} of its range)"
    entropy, unique = scene.newest("policy/entropy"), scene.newest("rollout/unique_share")
    if (entropy is not None and entropy < 0.05) or (unique is not None and unique < 0.3):
        return "no_exploration", Severity.WARN, 0.7, supported("no_exploration", f"{between}: members are alike")
    if entropy is None and unique is None:
        doubt = unknown("no_exploration", "rollout/unique_share", "policy/entropy")
        return "no_exploration", Severity.WARN, 0.4, doubt
    reason = f"{between} although their texts differ: the grader does not look at the answer"
    return "reward_dead", Severity.WARN, 0.6, supported("reward_dead", reason)


def _judged(
    scene: Scene, signal: Course, points: int, found: tuple[str, Severity, float, Candidate], place: float
) -> Finding:
    cause, severity, confidence, candidate = found
    share = 1.0 - float(np.median(signal.between(scene.onset, scene.now).values))
    summary = (
        f"In {share:.0%} of the groups every attempt has the same reward, for {points} logged points; the reward "
        f"stands at {place:.0%} of its range."
    )
    evidence = (Observation("reward/zero_variance_groups", scene.now, share, "nothing to learn from in these groups"),)
    rows = causes_of(scene, "no_group_signal", candidate)
    return Finding(
        NAME, "no_group_signal", cause, severity, confidence, summary, scene.onset, None, evidence, rows
    )  # fmt: skip


def _parts_cancel(history: History, signal: Course) -> Sequence[Finding]:
    """Parts of the reward vary, and no group has two different totals."""
    spreads = {name: compact(history.course(f"reward/part/{name}/std")) for name in part_names(history)}
    alive = {name: c for name, c in spreads.items() if len(c) and float(c.values[-1]) > 1e-6}
    silent = run_to_end(signal.values <= 1e-9, signal.steps)
    if not alive or silent is None:
        return ()
    for c in alive.values():
        varied = run_to_end(c.on(signal.steps) > 1e-6, signal.steps)
        silent = min(silent, varied or (int(signal.steps[-1]), 0), key=lambda r: r[1])
    onset, points = silent
    if points < 1:
        return ()
    if points < 3 and points < len(signal):
        return ()
    why = _why_silent(history, max(float(c.values[-1]) for c in alive.values()))
    if why is None:
        return ()
    reason, confidence = why
    severity = Severity.INFO if points < 3 else Severity.WARN if points < 5 else Severity.CRITICAL
    scene = scene_of(history, onset)
    told = ", ".join(f"{name} {float(c.values[-1]):.3g}" for name, c in alive.items())
    summary = f"Parts of the reward vary (standard deviation {told}), but in no group do two totals differ: {reason}."
    evidence = tuple(
        Observation(c.name, int(c.steps[-1]), float(c.values[-1]), "varies over the batch") for c in alive.values()
    )
    rows = causes_of(scene, "no_group_signal", supported("reward_parts_cancel", reason))
    return (
        Finding(
            NAME, "no_group_signal", "reward_parts_cancel", severity, confidence, summary, onset, None, evidence, rows
        ),
    )


def _why_silent(history: History, spread: float) -> tuple[str, float] | None:
    """Why the total is the same while parts vary, and how sure that is; ``None`` if the total varies between groups.

    Then each group is constant because its attempts are alike, and nothing cancels.
    """
    total, means = history.course("reward/std").finite.values, reward_course(history).values
    if len(total):
        varies = float(np.median(total[-3:])) > 0.2 * spread
    elif len(means) >= 3:
        varies = float(np.ptp(means[-8:])) > 0.02 * spread
    else:
        return "they cancel, have no weight, or differ between prompts only", 0.5
    return None if varies else ("they cancel each other or have no weight", 0.8)


DETECTOR = Detector(
    NAME,
    "no_group_signal",
    "No group has a signal",
    "At most 5 % of the groups hold two different rewards in the mean of the last 8 points. "
    "Reward in the top tenth of its range: solved (info). In the lowest twentieth: too hard. Between: members are "
    "alike (low entropy, few different texts), or the grader does not look at the answer. Also: within one point 60 % "
    "of the groups or more begin to fail as a whole, 40 % more than before, and the reward halves, while the text is "
    "as before: other tasks. Apart from that: parts of "
    "the reward with a spread while no group has one in its total.",
    (("reward/zero_variance_groups", "reward/all_fail_groups", "reward/group_std_mean", "reward/std"),),
    judge,
    ("reward/mean", "reward/max", "reward/part/{part}/std", "policy/entropy", "rollout/unique_share"),
    (
        "reward_dead",
        "grader_failing",
        "reward_shift",
        "learning_rate",
        "reward_collapse",
        "constant_policy",
        "truncation",
    ),
)

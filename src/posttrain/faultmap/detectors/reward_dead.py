"""A reward that is the same number for everything: a grader that returns a constant, or tasks nobody solves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import History, Values
from posttrain.faultmap.patterns_reward import (
    ConstantRun,
    constant_run,
    held_out,
    newest_step,
    reward_scale,
    signal_share,
)
from posttrain.faultmap.weighing import Scene, ruled_out, scene_of, supported, unknown
from posttrain.faultmap.weighing_update import causes_of

NAME = "reward_dead"
POINTS = 3
ZERO_POINTS = 5
"""A constant of 0 is also what a hard task gives in its first steps."""
NEAR = 8
KEPT = 0.8
"""Share of the entropy that must be left where everything is solved at once."""
CHANCE = 1e-3


def judge(history: History) -> Sequence[Finding]:
    """A constant that reaches the end of the log and that the policy cannot have brought about."""
    run = constant_run(history)
    if run is None or run.points < POINTS:
        return ()
    return _from_start(history, run) if run.index == 0 else _later(history, run)


def _from_start(history: History, run: ConstantRun) -> Sequence[Finding]:
    """Constant since the first point: nothing was ever learnt from it."""
    scene = scene_of(history, run.step)
    bottom = run.value <= 0
    if bottom and run.points < ZERO_POINTS:
        return ()
    if not bottom:
        solved = _is_success(history, run)
        confidence = 0.6 if solved else 0.9
        reason = f"every attempt of {run.points} points had the reward {run.value:g}"
        severity = Severity.WARN if solved else Severity.CRITICAL
        what = "Either the tasks were solved before training, or the grader pays whatever it gets." if solved else ""
        summary = f"The reward has been exactly {run.value:g} for every attempt since the first step. {what}".strip()
        return (_finding(scene, run, "reward_dead", severity, confidence, summary, supported("reward_dead", reason)),)
    cause, confidence, judged = _all_failed(history, run)
    summary = f"No attempt has had another reward than {run.value:g} since the first step ({run.points} logged points)."
    return (_finding(scene, run, cause, Severity.WARN, confidence, summary, *judged),)


def _all_failed(history: History, run: ConstantRun) -> tuple[str, float, tuple[Candidate, ...]]:
    """Grader or tasks? Held-out successes and parsable answers tell."""
    best = max((float(c.values.max()) for c in held_out(history)), default=None)
    if best is not None and best > max(run.value, 0.0) + 0.02:
        reason = f"held-out tasks reach {best:.2g} while no training attempt is paid"
        return "reward_dead", 0.9, (supported("reward_dead", reason), ruled_out("tasks_too_hard", reason))
    parsable = history.course("reward/parsable_share").finite.values
    if not len(parsable):
        doubt = unknown("tasks_too_hard", "reward/parsable_share", "evaluation/{environment}/reward_mean")
        return "reward_dead", 0.5, (supported("reward_dead", "not one attempt was ever paid"), doubt)
    share = float(np.median(parsable))
    if share < 0.05:
        reason = f"the grader found an answer in {share:.0%} of the attempts"
        return "reward_dead", 0.7, (supported("reward_dead", reason), ruled_out("tasks_too_hard", reason))
    reason = f"the grader found an answer in {share:.0%} of the attempts, and none was right"
    return "tasks_too_hard", 0.6, (supported("tasks_too_hard", reason),)


def _later(history: History, run: ConstantRun) -> Sequence[Finding]:
    """Constant from some point on. A policy comes to a constant gradually, or its text changes; a grader at once."""
    signal, steps = signal_share(history), run.reward.steps
    # Only the points around its beginning: earlier the policy learnt, later it changes because of it.
    end = int(steps[min(run.index + POINTS + 1, len(steps) - 1)])
    scene = scene_of(history, run.step, end, (int(steps[max(0, run.index - NEAR)]), run.step - 1))
    before = run.reward.values[max(0, run.index - POINTS) : run.index]
    alive = signal.between(int(steps[max(0, run.index - POINTS)]), run.step - 1).values
    scale = reward_scale(history)
    # The nearest of the points before counts: a fast learner passes through the levels between.
    places = scale.share(np.append(before, run.value))
    change = float(np.min(np.abs(places[:-1] - places[-1])))
    is_between = scale.bottom + 0.05 * scale.span < run.value < scale.top - 0.1 * scale.span
    was_alive = not len(alive) or float(np.median(alive)) >= 0.2
    # Groups with a signal do not all fail at once; that all succeed comes quickly to a fast learner.
    is_sudden = was_alive and (change >= 0.2 or (run.value <= scale.bottom and run.points > POINTS))
    is_solved_at_once = was_alive and len(before) >= POINTS and _is_solved_at_once(scene, run, alive)
    if scene.behaviour.has_text_changed or not (is_between or is_sudden or is_solved_at_once):
        return ()
    confidence = 0.85 if scene.behaviour.is_text_known else 0.6
    reason = f"the reward went from {np.median(before):.3g} to exactly {run.value:g} within one point"
    if scene.behaviour.is_text_known:
        reason += ", while the sampled text looks as before"
    summary = (
        f"Since step {run.step} every attempt has the reward {run.value:g}; before, groups differed and the mean was "
        f"{np.median(before):.3g}."
    )
    judged = supported("reward_dead", reason)
    return (_finding(scene, run, "reward_dead", Severity.CRITICAL, confidence, summary, judged),)


def _is_solved_at_once(scene: Scene, run: ConstantRun, alive: Values) -> bool:
    """Groups had a signal up to the last point, none had one in the next four, and the policy is no surer than before.

    At the share of groups with a signal just before, so many groups would agree by a chance under a thousandth (later
    points do not count: by then it may have learnt); a policy that learnt it all in one step would have lost entropy.
    """
    if not len(alive) or run.points <= POINTS:
        return False
    history, steps = scene.history, run.reward.steps
    first, last = int(steps[run.index - POINTS]), int(steps[run.index + POINTS])
    entropy = history.course("policy/entropy").finite
    old = entropy.between(-1, run.step - 1).values[-NEAR:]
    new = entropy.between(run.step, last).values
    if len(old) < POINTS or not len(new) or float(np.median(new)) < KEPT * float(np.median(old)):
        return False
    groups = history.course("rollout/groups").finite.between(run.step, last).values
    number = float(groups.sum()) if len(groups) else 2.0 * (POINTS + 1)
    # Groups without a signal that were dropped are missing in the share of silent ones.
    solved, failed = history.course("reward/all_success_groups").finite, history.course("reward/all_fail_groups").finite
    split = 1.0 - solved.between(first, run.step - 1).values
    mixed = split - failed.on(solved.between(first, run.step - 1).steps) if len(failed) and len(split) else split
    share = float(np.clip(np.min(np.append(alive, mixed)), 0.0, 0.99))
    return number * np.log1p(-share) < np.log(CHANCE)


def _is_success(history: History, run: ConstantRun) -> bool:
    """True if the constant can be the reward of a right answer."""
    success = history.course("reward/success").finite.values
    return run.value == 1.0 if not len(success) else float(np.median(success)) > 0.5


def _finding(
    scene: Scene, run: ConstantRun, cause: str, severity: Severity, confidence: float, summary: str, *judged: Candidate
) -> Finding:
    evidence = [Observation(run.reward.name, run.step, run.value, f"the same in {run.points} logged points")]
    share = signal_share(scene.history).between(run.step, newest_step(scene.history))
    if len(share):
        evidence.append(
            Observation(share.name, int(share.steps[-1]), 1.0 - float(share.values[-1]), "no group differs")
        )
    rows = causes_of(scene, "reward_flat", *judged)
    return Finding(
        NAME, "reward_flat", cause, severity, confidence, summary, run.step, None, tuple(evidence), rows
    )  # fmt: skip


DETECTOR = Detector(
    NAME,
    "reward_flat",
    "Reward constant or dead",
    "Every reward of every group is the same number up to the end of the log: from the first point on for 3 points (5 "
    "where the number is 0 or less), or later for 3 points where the sampled text did not change and the number lies "
    "between failure and success, or came at once (a fifth of the groups had a signal just before, and the change is a "
    "fifth of the range, or down to the bottom for 4 points; or all succeed for 4 points although so many groups would "
    "agree by a chance under 0.001 and the entropy is still at 80 %). A constant reached gradually at the top is a "
    "solved task. Where all fail, held-out successes and parsable answers tell a broken grader from hard tasks.",
    (("reward/mean", "reward/success"), ("reward/zero_variance_groups", "reward/all_fail_groups", "reward/std",
      "reward/group_std_mean")),
    judge,
    ("reward/parsable_share", "policy/entropy", "rollout/length_mean", "reward/success"),
    ("grader_failing", "reward_shift", "learning_rate", "truncation", "constant_policy"),
)  # fmt: skip

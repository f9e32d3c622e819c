"""Reward or groups go to another level at once: the grader, the tasks or the sampling of groups changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.gap import find_gap
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.patterns_reward import held_out, reward_course
from posttrain.faultmap.shift import NEAR, WIDE, Shift, Text, find_shift
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "reward_shift"
NEWLY_SILENT = 0.35
"""Share of groups that lost their signal at once, where the reward itself stayed."""
NEWLY_MIXED = 0.15
FOLLOWS, DOUBTLESS = 0.3, 9.0
RATE_JUMP = 1.5
PULLED_BACK = 0.5


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a shift means."""

    symptom: str
    cause: str
    severity: Severity
    confidence: float
    reason: str


def judge(history: History) -> Sequence[Finding]:
    """At most one finding: what the clearest sudden change of level says."""
    shift = find_shift(history)
    if shift is None or _is_explained(history, shift):
        return ()
    reading = _read(history, shift)
    if reading is None:
        return ()
    rows = causes_of(scene_of(history, shift.step), reading.symptom, supported(reading.cause, reading.reason))
    return (
        Finding(
            NAME, reading.symptom, reading.cause, reading.severity, reading.confidence,
            f"At step {shift.step} {_levels(shift)} at once: {reading.reason}.",
            shift.step, None, _evidence(history, shift), rows,
        ),
    )  # fmt: skip


def _read(history: History, shift: Shift) -> _Reading | None:
    silenced, kept = shift.silenced, shift.text is Text.KEPT
    if shift.text is Text.CHANGED and silenced > 0 and "rollout/truncated_share" not in shift.departed:
        return _other_tasks(shift)
    if not kept:
        return None
    if shift.is_reward_kept and silenced >= NEWLY_SILENT:
        reason = (
            "rewards are as high as before and texts look as before, but attempts of a group now agree: its members "
            "are copies of each other"
        )
        return _Reading("no_group_signal", "group_members_alike", Severity.WARN, 0.6, reason)
    if shift.fell and silenced > 0:
        is_lost = shift.reward.after <= 0.15 * shift.reward.before
        reason = "whole groups are no longer paid for texts that look as before, so the grader gives them a constant"
        severity = Severity.CRITICAL if is_lost else Severity.WARN
        return _Reading("reward_flat", "reward_dead", severity, 0.65, reason)
    if shift.fell and _newly_mixed(shift) and not _is_pulled_back(history, shift.step):
        reason = (
            "texts look as before, and groups that agreed no longer do: equal answers get different grades, so the "
            "grades themselves are noise"
        )
        return _Reading("reward_lost", "grader_failing", Severity.WARN, 0.6, reason)
    if shift.rose and silenced <= 0 and _newly_mixed(shift) and _held_out_stays(history, shift):
        reason = (
            "texts look as before, nearly every group now holds different rewards, and the held-out score did not "
            "follow: the reward pays for something that it did not pay for before"
        )
        return _Reading("reward_jump", "reward_hacked", Severity.WARN, 0.6, reason)
    if shift.rose and silenced > 0 and _is_beyond_doubt(shift) and _held_out_stays(history, shift):
        reason = (
            "whole groups are paid for texts that look as before, and the held-out score did not follow: the grader "
            "gives them a constant"
        )
        return _Reading("reward_flat", "reward_dead", Severity.WARN, 0.6, reason)
    return None


def _is_beyond_doubt(shift: Shift) -> bool:
    """Fast learners rise quickly, too: both changes must stand far above their noise."""
    return min(shift.reward.sigmas, shift.silent.sigmas if shift.silent is not None else 0.0) >= DOUBTLESS


def _other_tasks(shift: Shift) -> _Reading | None:
    told = " and ".join(name.partition("/")[2] for name in shift.departed)
    reason = f"{told} changed in the very same step, before any update could change the policy: other tasks"
    if shift.fell:
        return _Reading("no_group_signal", "task_mix_changed", Severity.WARN, 0.6, reason)
    return _Reading("reward_jump", "task_mix_changed", Severity.INFO, 0.6, f"{reason}, which it solves")


def _newly_mixed(shift: Shift) -> bool:
    """Groups that agreed before differ now; or hardly one agrees, as before."""
    silent = shift.silent
    return silent is not None and silent.after <= 0.1 and silent.before - silent.after >= NEWLY_MIXED


def _is_explained(history: History, shift: Shift) -> bool:
    """Another jump at that moment says what happened: of the rate, of the gap to the sampler, or a value not finite."""
    reward = reward_course(history)
    at = int(np.searchsorted(reward.steps, shift.step))
    first, last = int(reward.steps[max(0, at - NEAR)]), int(reward.steps[min(at + NEAR, len(reward) - 1)])
    gap = find_gap(history)
    if gap is not None and first <= gap.onset_step <= last:
        return True
    for name in ("policy/grad_norm", "policy/loss", "policy/entropy"):
        near = history.course(name).between(first, last).values
        if len(near) and not bool(np.isfinite(near).all()):
            return True
    rate = history.course("policy/learning_rate").finite
    before, after = rate.between(-1, shift.step - 1).values, rate.between(shift.step, last).values
    return bool(len(before) and len(after) and float(after.max()) > RATE_JUMP * max(float(before.max()), 1e-30))


def _is_pulled_back(history: History, step: int) -> bool:
    """The divergence from the reference fell behind the moment: an anchor draws the policy back."""
    kl = first_of(history, "policy/anchor_kl")
    old, new = kl.between(-1, step - 1).values[-WIDE:], kl.between(step, 2**62).values[:WIDE]
    return bool(len(old) and len(new) and float(np.median(new[NEAR:] if len(new) > NEAR else new))
                < PULLED_BACK * float(np.median(old)))  # fmt: skip


def _held_out_stays(history: History, shift: Shift) -> bool:
    """The first held-out score behind the moment gained less than three tenths of what the reward gained at once."""
    for score in held_out(history):
        old, new = score.between(-1, shift.step - 1).values[-2:], score.between(shift.step, 2**62).values[:1]
        if len(old) and len(new):
            return float(new[0] - old.mean()) < FOLLOWS * shift.reward.change
    return False


def _levels(shift: Shift) -> str:
    told = [f"the reward went from {shift.reward.before:.3g} to {shift.reward.after:.3g}"]
    if shift.is_reward_kept:
        told = [f"the reward stayed at {shift.reward.after:.3g}"]
    if shift.silent is not None:
        told.append(
            f"the share of groups without a signal went from {shift.silent.before:.0%} to {shift.silent.after:.0%}"
        )
    return " and ".join(told)


def _evidence(history: History, shift: Shift) -> tuple[Observation, ...]:
    shown = [
        Observation(reward_course(history).name, shift.step, shift.reward.after, f"{shift.reward.before:.3g} before")
    ]
    if shift.silent is not None:
        name = "reward/zero_variance_groups"
        shown.append(Observation(name, shift.step, shift.silent.after, f"{shift.silent.before:.2g} before"))
    for name in (*shift.departed, "policy/entropy", "rollout/length_mean"):
        course: Course = history.course(name).finite
        value = course.at(shift.step)
        if value is not None and all(name != o.signal for o in shown):
            shows = "changed with it" if name in shift.departed else "as before"
            shown.append(Observation(name, shift.step, value, shows))
    return tuple(shown)


DETECTOR = Detector(
    name=NAME,
    symptom="reward_jump",
    title="Reward or groups go to another level at once",
    pattern="The mean of up to 20 points behind a moment differs from that before it by 10 % of the reward's range or"
    " by 20 points of the share of groups without a signal, at 5 standard errors, and the first four have 60 % of it."
    " Text kept, reward lower, more silent groups: a constant grade for whole groups. Lower, and silent groups differ"
    " now (10 % or fewer are silent): grades are noise, unless the divergence fell by half. Reward kept and 35 points"
    " more silent groups: members of a group are copies. Higher, while the next held-out score has less than 30 % of "
    "the gain: a constant grade if more groups are silent, another thing that is paid if hardly one is. Text changed "
    "at once and did not go on changing: other tasks. Silent where the learning rate, the gap between sampler and "
    "trainer or a value that is not finite says what happened.",
    needs=(("reward/mean", "reward/success"), ("reward/zero_variance_groups", "reward/all_fail_groups")),
    judge=judge,
    sharpened_by=("policy/entropy", "rollout/length_mean", "policy/anchor_kl", "evaluation/{environment}/reward_mean"),
    yields_to=("grader_failing", "mismatch", "nonfinite", "truncation"),
)

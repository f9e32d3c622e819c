"""A loss of 0: usual with one update per batch, a fault only where the gradient is 0 too and groups have a signal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import reward_dead
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Mask
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, run_to_end, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "loss_zero"
POINTS = 5
TINY = 1e-5
CHANCE = 1e-4


def judge(history: History) -> Sequence[Finding]:
    """Healthy, without a signal, or a gradient that does not arrive."""
    norm = compact(history.course("policy/grad_norm"))
    if not len(norm):
        return ()
    signal = signal_share(history).on(norm.steps)
    vanished = _vanished(history, norm, signal > 0)
    if vanished:
        return vanished
    return _without_signal(history, norm, signal <= 1e-9) or _healthy(history, norm, signal > 0)


def _zero_loss(history: History, norm: Course) -> Mask:
    loss = history.course("policy/loss").finite
    return np.abs(loss.on(norm.steps)) <= TINY if len(loss) else np.zeros(len(norm), np.bool_)


def _vanished(history: History, norm: Course, has_signal: Mask) -> Sequence[Finding]:
    """Groups differ, and no gradient reaches the weights."""
    stretch = run_to_end((norm.values <= 1e-12) & has_signal, norm.steps)
    if stretch is None or stretch[1] < POINTS or _is_chance(history, norm.between(stretch[0], int(norm.steps[-1]))):
        return ()
    onset, points = stretch
    scene = scene_of(history, onset)
    reason = "groups differ in reward, yet the norm is exactly 0: no trained parameter takes part in the loss"
    tokens = scene.newest("policy/trained_tokens")
    if tokens == 0:
        reason = "no token is in the loss"
    summary = f"The gradient norm has been exactly 0 for {points} logged points although rewards differ within groups."
    evidence = (Observation("policy/grad_norm", onset, 0.0, "0 although there is a signal"),)
    rows = causes_of(scene, "gradient_vanished", supported("no_gradient_path", reason))
    return (
        Finding(
            NAME, "gradient_vanished", "no_gradient_path", Severity.CRITICAL, 0.6, summary, onset, None, evidence, rows
        ),
    )  # fmt: skip


def _is_chance(history: History, stretch: Course) -> bool:
    """True if the steps whose norm was logged may just have drawn groups without a signal.

    Of several steps between two logged points only the last one's norm is shown. All G groups of a step are silent
    with a chance of z^G at a share z of silent groups; a step has at least two.
    """
    zero = history.course("reward/zero_variance_groups").finite
    share = zero.on(stretch.steps) if len(zero) else np.full(len(stretch), 0.5)
    groups = history.course("rollout/groups").on(stretch.steps)
    size = np.where(np.isfinite(groups), np.maximum(groups, 2.0), 2.0)
    return float(np.sum(size * np.log(np.clip(share, 0.01, 1.0)))) > np.log(CHANCE)


def _without_signal(history: History, norm: Course, silent: Mask) -> Sequence[Finding]:
    """The gradient is gone because the rewards have nothing to say: a symptom of the update with a cause above it."""
    stretch = run_to_end((norm.values <= 1e-12) & silent, norm.steps)
    reward = reward_course(history)
    if stretch is None or stretch[1] < POINTS or not len(reward):
        return ()
    onset, points = stretch
    scene = scene_of(history, onset)
    dead = reward_dead.judge(history)
    now = reward.between(onset, scene.now).values
    place = float(reward_scale(history).share(np.array([np.median(now if len(now) else reward.values[-1:])]))[0])
    if dead:
        cause, severity = dead[0].cause, Severity.WARN
    elif place >= 0.9:
        cause, severity = "tasks_solved", Severity.INFO
    else:
        cause, severity = ("tasks_too_hard" if place <= 0.05 else "no_exploration"), Severity.WARN
    reason = dead[0].summary if dead else f"no group has a signal, and the reward stands at {place:.0%} of its range"
    summary = f"The gradient norm has been 0 for {points} logged points because no group has a reward signal."
    evidence = (Observation("policy/grad_norm", onset, 0.0, "nothing to learn from"),)
    rows = causes_of(scene, "gradient_vanished", supported(cause, reason))
    return (Finding(NAME, "gradient_vanished", cause, severity, 0.6, summary, onset, None, evidence, rows),)


def _healthy(history: History, norm: Course, has_signal: Mask) -> Sequence[Finding]:
    """Loss 0, gradient not: what one update per batch with a group baseline gives."""
    updates = history.facts.updates_per_batch
    if updates is not None and updates > 1:
        return ()
    stretch = run_to_end(_zero_loss(history, norm) & (norm.values > 0) & has_signal, norm.steps)
    if stretch is None or stretch[1] < min(3, len(norm)):
        return ()
    onset, points = stretch
    scene = scene_of(history, onset)
    now = float(norm.values[-1])
    reason = "with one update per batch the ratios are 1 and the advantages of a group sum to 0; the gradient does not"
    summary = f"The loss is 0 and the gradient norm is {now:.3g} ({points} logged points): healthy, {reason}."
    evidence = (
        Observation("policy/loss", scene.now, 0.0, "0 by construction"),
        Observation("policy/grad_norm", scene.now, now, "the policy is trained"),
    )
    rows = causes_of(scene, "loss_zero", supported("expected_by_construction", reason))
    return (
        Finding(
            NAME, "loss_zero", "expected_by_construction", Severity.INFO, 0.95, summary, onset, None, evidence, rows
        ),
    )  # fmt: skip


DETECTOR = Detector(
    NAME,
    "loss_zero",
    "Loss or gradient of 0",
    "Loss within 1e-5 of 0 with a gradient and a signal in the groups: expected (info). Gradient norm exactly 0 for 5 "
    "points up to the end of the log: a fault of the update where groups differ in reward (and not by the chance that "
    "the logged steps had no signal), a consequence of the rewards where none does.",
    (("policy/grad_norm",),),
    judge,
    ("policy/loss", "reward/zero_variance_groups", "reward/group_std_mean", "policy/trained_tokens"),
    (
        "constant_policy",
        "reward_dead",
        "reward_shift",
        "no_group_signal",
        "grader_failing",
        "reward_collapse",
        "nonfinite",
    ),
)

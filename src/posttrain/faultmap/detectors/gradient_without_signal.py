"""A gradient although no group has a reward signal: something other than the reward trains the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, run_to_end, signal_share
from posttrain.faultmap.weighing import scene_of, supported, unknown, weigh
from posttrain.faultmap.weighing_update import causes_of

NAME = "gradient_without_signal"
POINTS = 5
SMALL = 1e-3
"""Of the gradient norm of points with signal: beneath it a gradient is rounding or weight decay."""


def judge(history: History) -> Sequence[Finding]:
    """Points up to the end of the log at which all groups are silent and the gradient is not."""
    norm, signal = compact(history.course("policy/grad_norm")), signal_share(history)
    if not len(norm) or not len(signal):
        return ()
    silent = signal.on(norm.steps) <= 1e-9
    usual = norm.values[~silent & (norm.values > 0)]
    least = SMALL * float(np.median(usual)) if len(usual) else 1e-8
    stretch = run_to_end(silent & (norm.values > least), norm.steps)
    if stretch is None or stretch[1] < POINTS:
        return ()
    onset, points = stretch
    scene = scene_of(history, onset)
    own = weigh(scene, "anchor_only_gradient")
    is_known = (history.facts.anchor_weight or 0.0) > 0 or history.has("policy/anchor_kl")
    candidate = (
        supported("anchor_only_gradient", "an anchor to a reference pulls whether or not rewards differ")
        if is_known and history.facts.anchor_weight != 0
        else unknown("anchor_only_gradient", "policy/anchor_kl")
    )
    confidence = 0.85 if candidate.verdict is own.verdict and is_known else 0.4
    now = float(np.median(norm.between(onset, scene.now).values))
    summary = (
        f"For {points} logged points no group has held two different rewards, and the gradient norm is {now:.3g}: "
        "only terms other than the reward train the policy."
    )
    evidence = (
        Observation("policy/grad_norm", scene.now, now, "the update goes on"),
        Observation("reward/zero_variance_groups", scene.now, 1.0, "no group has a signal"),
    )
    severity = Severity.INFO if _is_solved(history, onset, scene.now) else Severity.WARN
    rows = causes_of(scene, "gradient_without_signal", candidate)
    return (
        Finding(
            NAME, "gradient_without_signal", "anchor_only_gradient", severity, confidence, summary, onset, None,
            evidence, rows,
        ),
    )  # fmt: skip


def _is_solved(history: History, onset: int, now: int) -> bool:
    values = reward_course(history).between(onset, now).values
    return bool(len(values)) and float(reward_scale(history).share(np.array([np.median(values)]))[0]) >= 0.9


DETECTOR = Detector(
    NAME,
    "gradient_without_signal",
    "Gradient without a reward signal",
    "No group holds two different rewards and the gradient norm is over a thousandth of that of points with a signal, "
    "for 5 points up to the end of the log. Info where the reward stands in the top tenth of its range.",
    (("policy/grad_norm",), ("reward/zero_variance_groups", "reward/all_fail_groups", "reward/group_std_mean")),
    judge,
    ("policy/anchor_kl", "reward/mean"),
    ("reward_dead", "reward_shift", "no_group_signal", "grader_failing", "reward_collapse"),
)

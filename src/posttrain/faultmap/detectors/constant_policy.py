"""The policy gives one and the same answer, and nothing moves any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Mask
from posttrain.faultmap.patterns import first_run
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, signal_share
from posttrain.faultmap.weighing import Scene, scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "constant_policy"
ENTROPY_LEFT = 0.02
"""Nats per token; and at most a twentieth of where the run began."""
KL_FAR = 1.0
POINTS = 2


def judge(history: History) -> Sequence[Finding]:
    """A stretch without entropy and gradient that reaches the end of the log, unless the tasks are solved."""
    entropy = compact(history.course("policy/entropy"))
    if len(entropy) < 2 * POINTS:
        return ()
    start = _start(_frozen(history, entropy), entropy)
    if start is None or start == 0:
        return ()
    onset = int(entropy.steps[start])
    scene = scene_of(history, onset)
    place = _reward_place(scene)
    if place is not None and place >= 0.9:
        return ()
    return (_finding(scene, entropy, place),)


def _start(frozen: Mask, entropy: Course) -> int | None:
    """Where the stretch began from which the entropy has not come back; a stray gradient does not end it."""
    back = entropy.values > 0.25 * float(np.median(entropy.values[:3]))
    start, offset = None, 0
    while True:
        found = first_run(frozen[offset:], POINTS)
        if found is None:
            return start
        start = offset + found
        returned = first_run(back[start:], 3)
        if returned is None:
            return start
        start, offset = None, start + returned + 3


def _frozen(history: History, entropy: Course) -> Mask:
    """Points with (nearly) no entropy and (nearly) no gradient."""
    began = float(np.median(entropy.values[:3]))
    dark = (entropy.values <= min(ENTROPY_LEFT, 0.05 * began)) & (began > ENTROPY_LEFT)
    norm = compact(history.course("policy/grad_norm"))
    moved = norm.values[norm.values > 0]
    if not len(norm):
        return np.zeros(len(entropy), np.bool_)
    usual = float(np.median(moved[:8])) if len(moved) else 0.0
    still = norm.on(entropy.steps) <= 1e-3 * max(usual, 1e-6)
    return dark & still


def _reward_place(scene: Scene) -> float | None:
    reward = reward_course(scene.history)
    now = reward.between(scene.onset, scene.now).values
    return float(reward_scale(scene.history).share(np.array([np.median(now)]))[0]) if len(now) else None


def _finding(scene: Scene, entropy: Course, place: float | None) -> Finding:
    history = scene.history
    kl = scene.newest("policy/anchor_kl")
    spread = signal_share(history).between(scene.onset, scene.now).values
    severity = Severity.CRITICAL if place is not None or (kl is not None and kl >= KL_FAR) else Severity.WARN
    cause, confidence, candidate = _cause(scene)
    told = [f"entropy {entropy.values[-1]:.2g}", "gradient 0"]
    if kl is not None:
        told.append(f"divergence from the reference {kl:.3g}")
    if place is not None:
        told.append(f"reward at {place:.0%} of its range")
    summary = f"Since step {scene.onset} the policy gives one constant answer: {', '.join(told)}. Stop the run."
    if len(spread) and float(np.median(spread)) > 0:
        summary += " Rewards still differ within groups, so they depend on something other than the text."
    evidence = [Observation("policy/entropy", scene.onset, float(entropy.at(scene.onset) or 0.0), "nothing is left")]
    norm = history.course("policy/grad_norm").finite.between(scene.onset, scene.now)
    if len(norm):
        evidence.append(Observation("policy/grad_norm", int(norm.steps[0]), float(norm.values[0]), "nothing moves"))
    if kl is not None:
        evidence.append(Observation("policy/anchor_kl", scene.now, kl, "stays where it was"))
    rows = causes_of(scene, "constant_policy", candidate)
    return Finding(
        NAME, "constant_policy", cause, severity, confidence, summary, scene.onset, None, tuple(evidence), rows
    )  # fmt: skip


def _cause(scene: Scene) -> tuple[str, float, Candidate]:
    """A policy that ran away first was pushed too hard; one whose entropy ran out lost its exploration."""
    kl = scene.history.course("policy/anchor_kl").finite.between(-1, scene.onset).values
    if len(kl) and float(kl.max()) >= KL_FAR:
        reason = f"the divergence from the reference reached {float(kl.max()):.3g} nats per token before"
        return "learning_rate_too_high", 0.7, supported("learning_rate_too_high", reason)
    entropy = scene.history.course("policy/entropy").finite.between(-1, scene.onset).values
    if float(entropy.max()) > 1.5 * float(np.median(entropy[:3])):
        reason = f"the entropy swung up to {float(entropy.max()):.3g} before it vanished"
        return "learning_rate_too_high", 0.6, supported("learning_rate_too_high", reason)
    reason = "the entropy ran out while the reward was not at its best"
    return "no_exploration", 0.5, supported("no_exploration", reason)


DETECTOR = Detector(
    NAME,
    "constant_policy",
    "Collapse to a constant answer",
    "Entropy at most 0.02 nats per token and a twentieth of where it began, and a gradient norm under a thousandth of "
    "the usual one, for two points, and no return to a quarter of the entropy since, while the reward is not in the "
    "top tenth of its range. Without a logged reward it is critical only where the divergence from the reference is "
    "over 1.",
    (("policy/entropy",), ("policy/grad_norm",)),
    judge,
    ("policy/anchor_kl", "reward/mean", "reward/zero_variance_groups", "rollout/unique_share"),
    ("learning_rate", "nonfinite"),
)

"""Reward that was learnt and is lost: first unstable, then collapsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.behaviour import Behaviour, compare
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity, Verdict
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, signal_share
from posttrain.faultmap.reward_loss import Loss, calm_after, reward_losses
from posttrain.faultmap.weighing import Scene, supported, weigh
from posttrain.faultmap.weighing_update import causes_of

NAME = "reward_collapse"
SETTLED = 16
"""The range of the reward is taken from the first points: one that moved later would move findings."""
_IN_ORDER = (
    "update_nonfinite",
    "grader_failing",
    "weights_corrupted_in_sync",
    "data_too_old",
    "learning_rate_too_high",
    "length_cap_too_short",
    "degenerate_repetition",
)
"""Causes that explain a loss when the log supports them; the first one counts."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Trouble that goes on: its first low point, the point at which it is named, and that of a collapse (if any)."""

    loss: Loss
    first: int
    named: int
    gone: int | None


def judge(history: History) -> Sequence[Finding]:
    """An episode of instability, and its end in a collapse; each as seen by the measure that names it first."""
    reward = compact(reward_course(history))
    if len(reward) < 6:
        return ()
    early = reward_scale(history.until(int(reward.steps[min(len(reward), SETTLED) - 1])))
    found = [_episode(history, loss) for loss in reward_losses(reward, early.bottom, early.top)]
    episodes = [e for e in found if e is not None]
    if not episodes:
        return ()
    unstable = min(episodes, key=lambda e: e.named)
    collapses = [e for e in episodes if e.gone is not None]
    findings = [_unstable(history, unstable)]
    if collapses:
        findings.insert(0, _collapsed(history, min(collapses, key=lambda e: e.gone or 0)))
    return findings


def _episode(history: History, loss: Loss) -> Episode | None:
    """The episode that goes on at the end of the log."""
    start = _start(history, loss, 0)
    while start is not None:
        over = calm_after(loss, start[0])
        if over is None:
            gone = np.flatnonzero(loss.gone[start[0] :])
            return Episode(loss, *start, int(gone[0]) + start[0] if len(gone) else None)
        start = _start(history, loss, over)
    return None


def _start(history: History, loss: Loss, after: int) -> tuple[int, int] | None:
    """Index of the first low point of the first episode behind ``after``, and of the point at which it is named."""
    for index in np.flatnonzero(loss.shaken[after:]) + after:
        named = int(index)
        first = _first_low(loss, named, after)
        behaviour = _behaviour(history, loss, first, named)
        if _is_second_symptom(behaviour) or _is_long(loss, named):
            return first, named
    return None


def _is_second_symptom(behaviour: Behaviour) -> bool:
    """The text changed, or the update grew. A smaller update only says that fewer groups have a signal."""
    return any(d.trait.is_text or d.rose for d in behaviour.departures)


def _first_low(loss: Loss, named: int, after: int) -> int:
    recent = np.flatnonzero(loss.low[max(after, named - 4 * loss.window + 1) : named + 1])
    first = max(after, named - 4 * loss.window + 1) + int(recent[0])
    return max(after, loss.onset_of_low(first))


def _is_long(loss: Loss, index: int) -> bool:
    """Low for six windows in a row: enough without a second symptom."""
    return index - loss.onset_of_low(index) + 1 >= 6 * loss.window


def _behaviour(history: History, loss: Loss, first: int, now: int) -> Behaviour:
    """Behaviour over the last windows against that of the time when the reward stood at its learnt level."""
    steps = loss.reward.steps
    good = np.flatnonzero(loss.smooth[:first] >= 0.8 * loss.learnt[:first])
    good = good[good >= min(2 * loss.window, len(good) // 2)]
    since = int(steps[good[0]]) if len(good) else -1
    newest = max(first, now - 3 * loss.window + 1)
    return compare(history, (since, int(steps[first]) - 1), (int(steps[newest]), int(steps[now])))


def _unstable(history: History, episode: Episode) -> Finding:
    loss, first, named = episode.loss, episode.first, episode.named
    steps = loss.reward.steps
    scene = Scene(history, int(steps[first]), int(steps[named]), _behaviour(history, loss, first, named))
    cause, confidence, candidates = _cause(scene)
    lowest = int(np.argmin(loss.smooth[first : named + 1])) + first
    now = len(loss.smooth) - 1
    best = loss.learnt[first] + loss.bottom
    again = ""
    if loss.smooth[now] >= 0.9 * loss.learnt[now]:
        again = f" That it is back at {loss.reward.values[now]:.3g} is no all-clear."
    traits = _traits(scene.behaviour)
    summary = (
        f"The reward is unstable: it had reached {best:.3g} and fell to {loss.reward.values[lowest]:.3g} by step "
        f"{int(steps[lowest])}{traits}.{again}"
    )
    return _finding(cause, Severity.WARN, confidence, summary, scene, loss, lowest, candidates)


def _collapsed(history: History, episode: Episode) -> Finding:
    loss, first, gone = episode.loss, episode.first, episode.gone or 0
    steps = loss.reward.steps
    onset = max(first, loss.onset_of_low(gone))
    scene = Scene(history, int(steps[onset]), int(steps[gone]), _behaviour(history, loss, onset, gone))
    if not scene.behaviour.departures:
        scene = Scene(history, int(steps[onset]), int(steps[gone]), _behaviour(history, loss, first, gone))
    cause, confidence, candidates = _cause(scene)
    best = loss.learnt[onset] + loss.bottom
    summary = (
        f"The reward has collapsed: {best:.3g} was learnt, {loss.reward.values[gone]:.3g} is left at step "
        f"{int(steps[gone])}{_traits(scene.behaviour)}."
    )
    return _finding(cause, Severity.CRITICAL, confidence, summary, scene, loss, gone, candidates)


def _finding(
    cause: str, severity: Severity, confidence: float, summary: str, scene: Scene, loss: Loss, low: int,
    judged: tuple[Candidate, ...],
) -> Finding:  # fmt: skip
    reward = loss.reward
    evidence = (
        Observation(reward.name, int(reward.steps[low]), float(reward.values[low]), "far below the learnt level"),
        *(d.observation() for d in scene.behaviour.departures),
    )
    rows = causes_of(scene, "reward_lost", *judged)
    return Finding(NAME, "reward_lost", cause, severity, confidence, summary, scene.onset, None, evidence, rows)


def _cause(scene: Scene) -> tuple[str, float, tuple[Candidate, ...]]:
    """The likeliest cause, how sure it is, and what was judged here."""
    for cause in _IN_ORDER:
        candidate = weigh(scene, cause)
        if candidate.verdict is Verdict.SUPPORTED and _explains(scene, cause):
            return cause, 0.6, (candidate,)
    if scene.behaviour.is_text_known and not scene.behaviour.has_text_changed:
        share = signal_share(scene.history).between(scene.onset, scene.now).values
        if len(share) and float(share.max()) <= 1e-9:
            return "reward_dead", 0.7, (supported("reward_dead", "every reward is the same, the text is as before"),)
        return "task_mix_changed", 0.5, (weigh(scene, "task_mix_changed"),)
    if not scene.behaviour.judged:
        return "policy_collapsed", 0.2, ()
    reason = "the text fell apart and nothing else in the log explains it"
    return "policy_collapsed", 0.5, (supported("policy_collapsed", reason),)


def _explains(scene: Scene, cause: str) -> bool:
    """Some traits are as much a mark of a collapse as of its cause: a larger gradient, cut or repeated texts."""
    if cause == "learning_rate_too_high":
        return scene.behaviour.departed("policy/anchor_kl", "policy/approx_kl", "policy/clip_fraction_high") is not None
    if cause in ("length_cap_too_short", "degenerate_repetition"):
        return scene.behaviour.departed("policy/entropy", "policy/sampled_entropy") is None
    return True


def _traits(behaviour: Behaviour) -> str:
    if not behaviour.departures:
        return ""
    told = [f"{d.trait.signal} {d.before:.3g} -> {d.now:.3g}" for d in behaviour.departures[:3]]
    return ", while " + ", ".join(told)


DETECTOR = Detector(
    NAME,
    "reward_lost",
    "Reward learnt and lost",
    "Unstable (warn): two of the last four points lie under 70 % of the learnt level (counted from the bottom of the "
    "scale) and more than 4 times the noise below it, while entropy, length, divergence, gradient or mismatch doubled "
    "or halved; without such a second symptom six points in a row. It lasts until the reward was back at 90 % for "
    "twice as long as the trouble. Collapsed (critical): within such an episode two points in a row under 15 %, or "
    "eight under 50 %. Points are single ones and means of 2, 4, ... 32 of them, whichever shows it first.",
    (("reward/mean", "reward/success"),),
    judge,
    ("policy/entropy", "policy/grad_norm", "rollout/length_mean", "rollout/truncated_share", "logprobs/mismatch_mean"),
    (
        "nonfinite",
        "mismatch",
        "learning_rate",
        "grader_failing",
        "reward_shift",
        "anchor_strength",
        "surrogate_gain",
        "entropy_explosion",
        "reward_dead",
        "constant_policy",
        "reward_hacking",
        "no_group_signal",
    ),
)

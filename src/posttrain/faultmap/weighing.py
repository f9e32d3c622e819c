"""Differential diagnosis: what the log says about each candidate cause of a symptom, around its onset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.behaviour import Behaviour, compare
from posttrain.faultmap.causes import SYMPTOMS
from posttrain.faultmap.finding import Candidate, Verdict
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_reward import (
    held_out,
    newest_step,
    part_names,
    reward_course,
    reward_scale,
    signal_share,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A run, the step at which a symptom began, the newest step judged, and how behaviour changed between."""

    history: History
    onset: int
    now: int
    behaviour: Behaviour

    def newest(self, signal: str) -> float | None:
        """Median of a signal's finite values since the onset; ``None`` where it was not logged since then."""
        values = self.history.course(signal).finite.between(self.onset, self.now).values
        return float(np.median(values)) if len(values) else None


Weigher = Callable[[Scene], Candidate]


def scene_of(history: History, onset: int, now: int | None = None, before: tuple[int, int] | None = None) -> Scene:
    """The run around an onset: behaviour since then against behaviour before (default: everything before)."""
    newest = newest_step(history) if now is None else now
    return Scene(history, onset, newest, compare(history, before or (-1, onset - 1), (onset, newest)))


def differential(scene: Scene, symptom: str, *judged: Candidate) -> tuple[Candidate, ...]:
    """One candidate per cause of a symptom, in the order in which to look; ``judged`` by the detector itself.

    A judged cause that the symptom does not list comes first.
    """
    known = {candidate.cause: candidate for candidate in judged}
    listed = SYMPTOMS[symptom].causes
    extra = tuple(c for c in judged if c.cause not in listed)
    return extra + tuple(known[c] if c in known else weigh(scene, c) for c in listed)


def weigh(scene: Scene, cause: str) -> Candidate:
    """What the log says about one cause."""
    weigher = WEIGHERS.get(cause)
    if weigher is None:
        return Candidate(cause, Verdict.UNKNOWN, "scalars of a log do not show it")
    return weigher(scene)


def supported(cause: str, reason: str) -> Candidate:
    """The log speaks for this cause."""
    return Candidate(cause, Verdict.SUPPORTED, reason)


def ruled_out(cause: str, reason: str) -> Candidate:
    """The log speaks against this cause."""
    return Candidate(cause, Verdict.RULED_OUT, reason)


def unknown(cause: str, *log_this: str) -> Candidate:
    """The log does not have what would decide."""
    return Candidate(cause, Verdict.UNKNOWN, f"{' or '.join(log_this)} was not logged", log_this)


def _reward_dead(s: Scene) -> Candidate:
    share = signal_share(s.history).between(s.onset, s.now).values
    if not len(share):
        return unknown("reward_dead", "reward/zero_variance_groups", "reward/std")
    if float(share.max()) > 0:
        return ruled_out("reward_dead", "rewards still differ within some groups")
    return supported("reward_dead", "no group has two different rewards")


def _tasks_too_hard(s: Scene) -> Candidate:
    reward = reward_course(s.history).between(s.onset, s.now).values
    if not len(reward):
        return unknown("tasks_too_hard", "reward/mean")
    place = float(np.median(reward_scale(s.history).share(reward)))
    if place > 0.05:
        return ruled_out("tasks_too_hard", f"the reward lies at {place:.0%} of its range")
    return supported("tasks_too_hard", "the reward lies at the bottom of its range")


def _tasks_solved(s: Scene) -> Candidate:
    reward = reward_course(s.history).between(s.onset, s.now).values
    if not len(reward):
        return unknown("tasks_solved", "reward/mean")
    place = float(np.median(reward_scale(s.history).share(reward)))
    if place < 0.9:
        return ruled_out("tasks_solved", f"the reward lies at {place:.0%} of its range")
    return supported("tasks_solved", f"the reward lies at {place:.0%} of its range")


def _reward_parts_cancel(s: Scene) -> Candidate:
    names = part_names(s.history)
    if not names:
        return unknown("reward_parts_cancel", "reward/part/{part}/std")
    share = signal_share(s.history).between(s.onset, s.now).values
    if len(names) < 2:
        return ruled_out("reward_parts_cancel", "the reward has one part only")
    if len(share) and float(share.max()) > 0:
        return ruled_out("reward_parts_cancel", "the total still differs within some groups")
    return Candidate("reward_parts_cancel", Verdict.UNKNOWN, "the parts' spread within groups was not logged")


def _grader_failing(s: Scene) -> Candidate:
    share = s.newest("reward/ungradable_share")
    if share is None:
        return unknown("grader_failing", "reward/ungradable_share")
    if share < 0.02:
        return ruled_out("grader_failing", f"{share:.1%} of the samples could not be graded")
    return supported("grader_failing", f"{share:.0%} of the samples could not be graded")


def _reward_hacked(s: Scene) -> Candidate:
    if not held_out(s.history):
        return unknown("reward_hacked", "evaluation/{environment}/reward_mean")
    return Candidate("reward_hacked", Verdict.UNKNOWN, "compare held-out score and reward over the same steps")


def _task_mix_changed(s: Scene) -> Candidate:
    if not s.behaviour.is_text_known:
        return unknown("task_mix_changed", "policy/entropy", "rollout/length_mean")
    if s.behaviour.has_text_changed:
        return ruled_out("task_mix_changed", "the sampled text itself changed")
    return supported("task_mix_changed", "the reward changed while the sampled text looks the same")


def _moved(cause: str, what: str, *signals: str, rising: bool = True) -> Weigher:
    """Supported if one of the signals left its level in the given direction, ruled out if none of those logged did."""

    def judge(s: Scene) -> Candidate:
        found = [d for d in s.behaviour.departures if d.trait.signal in signals and d.rose is rising and d.factor > 0]
        if found:
            return supported(cause, f"{found[0].trait.signal} went from {found[0].before:.3g} to {found[0].now:.3g}")
        judged = [name for name in signals if name in s.behaviour.judged]
        if not judged:
            return unknown(cause, *signals)
        return ruled_out(cause, f"{what}: {' and '.join(judged)} kept their level")

    return judge


def _rising(cause: str, signal: str, limit: float, what: str) -> Weigher:
    """Supported if a signal lies over a limit since the onset and was not there before."""

    def judge(s: Scene) -> Candidate:
        value = s.newest(signal)
        if value is None:
            return unknown(cause, signal)
        if value < limit:
            return ruled_out(cause, f"{what}: {signal} is {value:.3g}")
        before = s.history.course(signal).finite.between(-1, s.onset - 1).values
        if len(before) >= 3 and float(np.median(before)) >= 0.75 * value:
            return ruled_out(cause, f"{signal} was as high before ({float(np.median(before)):.3g})")
        return supported(cause, f"{signal} is {value:.3g}")

    return judge


def _update_nonfinite(s: Scene) -> Candidate:
    courses = [s.history.course(name) for name in ("policy/grad_norm", "policy/loss")]
    known = [c for c in courses if len(c)]
    if not known:
        return unknown("update_nonfinite", "policy/grad_norm", "policy/loss")
    bad = [int(step) for c in known for step in c.steps[~np.isfinite(c.values)] if step <= s.onset]
    if bad:
        return supported("update_nonfinite", f"gradient or loss was not finite at step {min(bad)}")
    return ruled_out("update_nonfinite", "gradient and loss were finite until then")


def _anchor_only(s: Scene) -> Candidate:
    if s.history.facts.anchor_weight == 0:
        return ruled_out("anchor_only_gradient", "the run has no anchor")
    kl = s.newest("policy/anchor_kl")
    if kl is None and s.history.facts.anchor_weight is None:
        return unknown("anchor_only_gradient", "policy/anchor_kl")
    return supported("anchor_only_gradient", "the run has an anchor to a reference, whose gradient needs no reward")


def _data_too_old(s: Scene) -> Candidate:
    if s.history.facts.asynchronous is False:
        return ruled_out("data_too_old", "sampling and training alternate")
    return _moved_staleness(s)


_moved_staleness = _rising("data_too_old", "schedule/staleness_mean", 2.0, "the data is young")
_MISMATCH = ("logprobs/mismatch_mean", "logprobs/mismatch_k3")

WEIGHERS: Mapping[str, Weigher] = {
    "reward_dead": _reward_dead,
    "reward_hacked": _reward_hacked,
    "tasks_too_hard": _tasks_too_hard,
    "tasks_solved": _tasks_solved,
    "reward_parts_cancel": _reward_parts_cancel,
    "grader_failing": _grader_failing,
    "task_mix_changed": _task_mix_changed,
    "learning_rate_too_high": _moved(
        "learning_rate_too_high",
        "the update did not run away",
        "policy/anchor_kl",
        "policy/approx_kl",
        "policy/clip_fraction_high",
        "policy/grad_norm",
    ),
    "no_exploration": _moved("no_exploration", "the entropy is still there", "policy/entropy", rising=False),
    "length_bias": _moved("length_bias", "the length did not run away", "rollout/length_mean"),
    "update_nonfinite": _update_nonfinite,
    "anchor_only_gradient": _anchor_only,
    "policy_collapsed": _moved("policy_collapsed", "the text did not fall apart", "policy/entropy"),
    "numerics_differ": _moved("numerics_differ", "sampler and trainer agree as before", *_MISMATCH),
    "stale_weights": _moved("stale_weights", "sampler and trainer agree as before", *_MISMATCH),
    "stale_cache": _moved("stale_cache", "sampler and trainer agree as before", *_MISMATCH),
    "weights_corrupted_in_sync": _moved("weights_corrupted_in_sync", "sampler and trainer agree as before", *_MISMATCH),
    "degenerate_repetition": _moved(
        "degenerate_repetition", "the samples of a group still differ", "rollout/unique_share", rising=False
    ),
    "length_cap_too_short": _rising("length_cap_too_short", "rollout/truncated_share", 0.5, "few samples are cut"),
    "stop_token_missed": _rising("stop_token_missed", "rollout/truncated_share", 0.9, "samples end by themselves"),
    "data_too_old": _data_too_old,
    "groups_lost": _rising("groups_lost", "schedule/discarded", 1.0, "no group is thrown away"),
}

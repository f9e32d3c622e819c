"""The learning rate is so high that the policy is thrown away, or so low that nothing moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.gap import find_gap
from posttrain.faultmap.history import Course, History, Mask, Steps, Values
from posttrain.faultmap.loss_terms import implied_anchor_weight
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, noise_so_far, smooth_on, start_level
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.patterns_reward import reward_course, signal_share
from posttrain.faultmap.rate_events import destroyed_at_once, dropped_rate
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import KL_TOO_FAR, causes_of

NAME = "learning_rate"
ENTROPY_GONE = 0.05
GRADIENT_GROWN = 8.0
RATE_JUMP = 2.5
STILL_POINTS = 40
STAYED = 3e-3
SIGNAL = 0.3
_DIVERGENCES = ("policy/anchor_kl", "policy/approx_kl")


def judge(history: History) -> Sequence[Finding]:
    """Thrown away: divergence or gradient blew up and entropy is gone. Still: signal, gradient, and nothing moves."""
    high = _too_high(history) or destroyed_at_once(history)
    if high is not None:
        return (high,)
    low = dropped_rate(history) or _too_low(history)
    return () if low is None else (low,)


def _too_high(history: History) -> Finding | None:
    entropy = first_of(history, "policy/entropy", "policy/sampled_entropy")
    if len(entropy) < 3:
        return None
    steps = entropy.steps
    top = np.maximum.accumulate(entropy.values)
    gone = (rolling_median(entropy.values, 3) < ENTROPY_GONE * top) & (top > 0.02)
    wild = rolling_median(entropy.values, 3) > 3.0 * np.maximum(start_level(entropy.values, 3), 0.1)
    p = progress(history, steps)
    raised = _raised(history, steps)
    found = episode(raised & (gone | p.fallen()), 3, ~raised)
    if found is not None:
        return _thrown_away(history, entropy, "policy/learning_rate", p, found)
    blown, signal = _blown_up(history, steps)
    in_vain = (p.stands | p.fallen()) & ~p.saturated
    found = episode(blown & ((gone & in_vain) | (wild & p.fallen())), 3, ~blown)
    # A policy that learnt at this rate for long was not thrown away by it.
    if found is None or p.had_learnt(found.onset):
        return None
    return _thrown_away(history, entropy, signal, p, found)


def _raised(history: History, steps: Steps) -> Mask:
    """Since the rate rose in one step far above all before. Warm-ups and restarts of a schedule do not do that."""
    c = first_of(history, "policy/learning_rate")
    if len(c) < 3:
        return np.zeros(len(steps), np.bool_)
    before = np.maximum.accumulate(c.values)[1:-1]
    settled = c.values[1:-1] == c.values[:-2]
    jump = np.concatenate([[False, False], settled & (c.values[2:] > RATE_JUMP * before) & (before > 0)])
    return _ever(c, jump, steps)


def _blown_up(history: History, steps: Steps) -> tuple[Mask, str]:
    """Where divergence or gradient norm has once been far beyond its start, and the signal that shows it."""
    none = np.zeros(len(steps), np.bool_)
    for name in _DIVERGENCES:
        c = first_of(history, name)
        if len(c):
            far = c.values > max(KL_TOO_FAR, 3.0 * min(float(c.values[0]), KL_TOO_FAR))
            return _ever(c, far, steps), name
    c = first_of(history, "policy/grad_norm")
    if len(c) < 4:
        return none, c.name
    start = start_level(c.values[c.values > 0], 2)
    return _ever(c, c.values > GRADIENT_GROWN * start, steps), c.name


def _ever(c: Course, mask: Mask, steps: Steps) -> Mask:
    return Course(c.name, c.steps, np.logical_or.accumulate(mask).astype(np.float64)).on(steps) > 0


def _thrown_away(history: History, entropy: Course, signal: str, p: Progress, found: Episode) -> Finding:
    at, onset = found.point(entropy.steps), int(entropy.steps[found.onset])
    blown = first_of(history, signal).between(onset, int(entropy.steps[at]))
    peak = int(np.argmax(blown.values)) if len(blown) else 0
    height = float(blown.values[peak]) if len(blown) else float("nan")
    rate = first_of(history, "policy/learning_rate")
    known = f" at a learning rate of {rate.values.max():.2g}" if len(rate) else ""
    text = f"{signal} reached {height:.3g}{known if signal != rate.name else ''}"
    chosen = supported("learning_rate_too_high", text)
    seen = [Observation(signal, int(blown.steps[peak]), height, "its highest value")] if len(blown) else []
    seen.append(Observation(entropy.name, int(entropy.steps[at]), float(entropy.values[at]), "entropy afterwards"))
    return Finding(
        NAME, "kl_high", chosen.cause, Severity.WARN if bool(p.saturated[at]) else Severity.CRITICAL, 0.75,
        f"{text}; entropy went from {entropy.values[0]:.3g} to {entropy.values[at]:.3g} and the reward is "
        f"{p.now[at]:.3g}.",
        onset, None, tuple(seen), causes_of(scene_of(history, onset), "kl_high", chosen),
    )  # fmt: skip


def _too_low(history: History) -> Finding | None:
    reward = first_of(history, reward_course(history).name)
    if len(reward) < STILL_POINTS or not _could_move(history):
        return None
    p = progress(history, reward.steps)
    moved, shown = _moved(history, reward.steps)
    if not shown:
        return None
    signal = signal_share(history)
    has_signal = Course(signal.name, signal.steps, rolling_median(signal.values, 15)).on(reward.steps) > SIGNAL
    gradient = smooth_on(history, "policy/grad_norm", reward.steps, 15) > 0
    settled = np.arange(len(reward)) >= STILL_POINTS - 1
    still = settled & p.stands & ~p.saturated & ~p.fallen() & ~moved & has_signal & gradient
    found = episode(still, 5, np.zeros(len(reward), np.bool_))
    if found is None or found.last is not None or find_gap(history) is not None:
        return None
    return _still(history, reward, p, shown, found)


def _could_move(history: History) -> bool:
    """Not a run at rate 0, and not one that an anchor may hold."""
    rates = history.course("policy/learning_rate").finite.values
    weight = implied_anchor_weight(history)
    held = weight is not None and weight >= 0.2 * (1.0 if history.facts.anchor_weight is None else 0.1)
    return not held and (not len(rates) or float(rates[-1]) > 0)


def _moved(history: History, steps: Steps) -> tuple[Mask, dict[str, Values]]:
    """Where the policy has left its start, and by which signals that can be seen."""
    moved = np.zeros(len(steps), np.bool_)
    shown: dict[str, Values] = {}
    if history.has("policy/anchor_kl"):
        shown["policy/anchor_kl"] = smooth_on(history, "policy/anchor_kl", steps, 5)
        moved |= ~(shown["policy/anchor_kl"] < STAYED)
    for name, share in (("policy/entropy", 0.07), ("rollout/length_mean", 0.1)):
        c = first_of(history, name)
        if len(c):
            start, now = start_level(c.values, 10), smooth_on(history, name, steps, 15)
            noise = Course(name, c.steps, noise_so_far(c.values)).on(steps)
            moved |= ~(np.abs(now - start) < np.fmax(share * abs(start), 1.3 * noise))
            if name == "policy/entropy":
                shown[name] = now
    return moved, shown


def _still(history: History, reward: Course, p: Progress, shown: dict[str, Values], found: Episode) -> Finding:
    newest, onset = int(reward.steps[-1]), int(reward.steps[0])
    chosen = supported("learning_rate_too_low", f"{len(reward)} points with signal and gradient, and nothing moved")
    seen = [Observation(p.name, newest, float(p.now[-1]), f"at the start {p.start:.3g}")]
    seen += [Observation(name, newest, float(values[-1]), "as at the start") for name, values in shown.items()]
    norm = history.course("policy/grad_norm").at(newest)
    seen += [Observation("policy/grad_norm", newest, norm, "there is a gradient")] if norm is not None else []
    return Finding(
        NAME, "no_progress", chosen.cause, Severity.WARN, 0.6,
        f"After {len(reward)} points reward ({p.now[-1]:.3g}) and policy are where they began, although groups differ "
        "and there is a gradient.",
        onset, None, tuple(seen), causes_of(scene_of(history, onset), "no_progress", chosen),
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom="kl_high",
    title="The learning rate is too high, or too low to move anything",
    pattern="Too high: a divergence above 1 nat and three times its start (or, where none is logged, a gradient norm "
    "8 times its start) and then, at three points, entropy below 5 % of its highest without a gain in reward, or "
    "three times its start with a lost reward. Too low: after 40 points reward, entropy (7 %), length (10 %) and "
    "divergence (0.003) are where they began although 30 % of the groups differ and there is a gradient. At one "
    "moment: paid in the first 8 points, never since, and entropy or length changed by 1.4 with it; or the rate fell "
    "to a twentieth in one step and an unsolved reward has not risen since.",
    needs=(("policy/entropy", "policy/sampled_entropy", "policy/anchor_kl"), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("policy/anchor_kl", "policy/approx_kl", "policy/grad_norm", "policy/learning_rate"),
    yields_to=("mismatch", "grader_failing", "anchor_strength"),
)

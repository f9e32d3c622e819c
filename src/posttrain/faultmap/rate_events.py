"""Two things a learning rate does at one moment: destroy a policy in the first steps, or stop it when it drops."""

from __future__ import annotations

import numpy as np

from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.patterns_reward import compact, reward_course, reward_scale, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "learning_rate"
FIRST, SINCE = 8, 20
"""A policy is destroyed at once within so many points; it stays so for as many."""
DROP = 20.0
_TEXT = (("policy/entropy", 1.4), ("rollout/length_mean", 1.4))


def destroyed_at_once(history: History) -> Finding | None:
    """The first steps were paid, then nothing ever was, and the text became another one in the same few steps."""
    reward, signal = compact(reward_course(history)), signal_share(history)
    n = len(reward)
    if n < FIRST + SINCE or not len(signal):
        return None
    scale = reward_scale(history)
    place = scale.share(reward.values)
    alive = (place > 0.1) & (signal.on(reward.steps) > 0.1)
    last = int(np.flatnonzero(alive[:FIRST])[-1]) if alive[:FIRST].any() else -1
    if not 0 <= last < FIRST - 1 or not alive[0] or float(np.max(place[last + 3 :])) > 0.1:
        return None
    silent = 1.0 - signal.on(reward.steps)[last + 3 :]
    step = int(reward.steps[last + 1])
    norms = history.course("policy/grad_norm").values[: last + 3]
    changed = _changed(history, step)
    if float(np.mean(silent)) < 0.9 or not changed or not bool(np.isfinite(norms).all()):
        return None
    name, before, now = changed
    reason = f"{name} went from {before:.3g} to {now:.3g} in the same steps: the first updates destroyed the policy"
    chosen = supported("learning_rate_too_high", reason)
    return Finding(
        NAME, "kl_high", chosen.cause, Severity.CRITICAL, 0.65,
        f"The first {last + 1} points were paid {np.mean(reward.values[: last + 1]):.3g}, none since: {reason}.",
        int(reward.steps[0]), None,
        (
            Observation(reward.name, step, float(reward.values[last + 1]), "nothing is paid from here on"),
            Observation(name, step, now, f"{before:.3g} before"),
        ),
        causes_of(scene_of(history, step), "kl_high", chosen),
    )  # fmt: skip


def _changed(history: History, step: int) -> tuple[str, float, float] | None:
    for name, factor in _TEXT:
        course = first_of(history, name)
        old, new = course.between(-1, step - 1).values, course.between(step, 2**62).values[:FIRST]
        if len(old) and len(new):
            before, now = float(old[0]), float(np.median(new))
            if now > factor * before or now < before / factor:
                return name, before, now
    return None


def dropped_rate(history: History) -> Finding | None:
    """The rate fell to a twentieth from one point to the next, and the unsolved reward has not risen since."""
    rate = first_of(history, "policy/learning_rate")
    if len(rate) < 2 * FIRST:
        return None
    values = rate.values
    drops = np.flatnonzero((values[1:] * DROP < values[:-1]) & (values[1:] > 0)) + 1
    # A restart of a schedule or a warm-up comes back; a rate that was set stays.
    drops = [int(i) for i in drops if i >= FIRST and float(np.max(values[i:])) * DROP <= float(values[i - 1]) * 1.001]
    if not drops or len(values) - drops[0] < SINCE:
        return None
    at = drops[0]
    p = progress(history, rate.steps)
    gain = float(np.nanmean(p.steady[-FIRST:]) - np.nanmean(p.steady[at : at + FIRST]))
    if not p.known or bool(p.attained[-1] >= 0.9) or gain > 0.05 * p.span or bool(p.fallen()[-1]):
        return None
    step = int(rate.steps[at])
    reason = f"the rate went from {values[at - 1]:.2g} to {values[at]:.2g} at once, and the reward stands since"
    chosen = supported("learning_rate_too_low", reason)
    return Finding(
        NAME, "no_progress", chosen.cause, Severity.WARN, 0.7,
        f"Since step {step} nothing is learnt: {reason} at {p.now[-1]:.3g}.",
        step, None,
        (
            Observation(rate.name, step, float(values[at]), f"{values[at - 1]:.2g} before"),
            Observation(p.name, int(rate.steps[-1]), float(p.now[-1]), f"{p.now[at]:.3g} when it dropped"),
        ),
        causes_of(scene_of(history, step), "no_progress", chosen),
    )  # fmt: skip

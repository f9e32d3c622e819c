"""Attempts get longer and longer without a gain, or the reward pays for the length itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.length_pay import LengthPay, length_pay
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, noise_so_far, smooth_on
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.patterns_reward import held_out
from posttrain.faultmap.weighing import Scene, scene_of, supported
from posttrain.faultmap.weighing_update import choose

NAME = "length_explosion"
SYMPTOM = "length_explosion"
FACTOR = 1.6
FAR = 2.5
RISE = 2.0
HOLD = 5
_ORDER = (
    "weights_corrupted_in_sync",
    "stop_token_missed",
    "batch_reused_too_often",
    "data_too_old",
    "length_bias",
    "degenerate_repetition",
    "learning_rate_too_high",
    "policy_collapsed",
)


def judge(history: History) -> Sequence[Finding]:
    """Length over 1.6 times its own lowest level while what counts as success did not gain since then."""
    length = first_of(history, "rollout/length_mean")
    if len(length) < HOLD + 2:
        return ()
    smooth = rolling_median(length.values, 3)
    base = _base(length.values)
    rise = smooth - base.level
    longer = (smooth > FACTOR * base.level) & (rise > RISE) & (rise > 5.0 * noise_so_far(length.values))
    p = progress(history, length.steps)
    calm = ~(smooth > 1.4 * base.level)
    paid_since = p.gained(p.now[base.index], sigmas=1.0)
    # A gain that noise hides is given the benefit of the doubt until the length is far beyond its level.
    doubtful = ((p.steady > p.start + 0.5 * p.noise) | p.saturated) & ~p.fallen() & ~(smooth > FAR * base.level)
    vain = episode(longer & ~paid_since & ~doubtful & np.isfinite(p.now), HOLD, calm)
    if vain is not None:
        return (_in_vain(history, length, smooth, base.level, p, vain),)
    bought = episode(longer & paid_since, HOLD, calm)
    return () if bought is None else _bought(history, length, smooth, base, p, bought)


class _Base:
    """Lowest settled length so far at each point, and the index at which it was reached."""

    __slots__ = ("index", "level")

    def __init__(self, level: Values, index: np.ndarray) -> None:
        self.level, self.index = level, index


def _base(values: Values) -> _Base:
    settled = rolling_median(values, 5)
    settled[:2] = np.inf
    level = np.minimum.accumulate(settled)
    index = np.maximum.accumulate(np.where(settled == level, np.arange(len(values)), 0))
    return _Base(level, index)


def _in_vain(history: History, length: Course, smooth: Values, base: Values, p: Progress, found: Episode) -> Finding:
    at, onset = found.point(length.steps), int(length.steps[found.onset])
    scene = scene_of(history, onset)
    grown = f"from {base[at]:.3g} to {smooth[at]:.3g} tokens"
    pay = length_pay(history, int(length.steps[at]))
    if pay is not None and pay.pays:
        chosen, rest = choose(scene, SYMPTOM, (), supported("reward_hacked", pay.text))
    else:
        default = supported("length_bias", f"length grew {grown} and the reward did not; no other cause is visible")
        chosen, rest = choose(scene, SYMPTOM, _ORDER, default)
    lost = bool(p.fallen()[at])
    harm = Severity.INFO if bool(p.saturated[at]) and not lost else Severity.WARN
    return _finding(
        history, length, p, found, chosen, rest,
        Severity.CRITICAL if bool(p.lost[found.onset : at + 1].any()) else harm,
        0.55, f"Length grew {grown} while the reward went from {p.start:.3g} to {p.now[at]:.3g}.",
    )  # fmt: skip


def _bought(
    history: History, length: Course, smooth: Values, base: _Base, p: Progress, found: Episode
) -> Sequence[Finding]:
    """Reward and length rose together. It is a fault where the reward pays for length instead of for answers."""
    at, onset = found.point(length.steps), int(length.steps[found.onset])
    since = int(length.steps[base.index[at]])
    reason, confidence = _paid_for_length(history, length, since, int(length.steps[at]))
    if not reason:
        return ()
    scene: Scene = scene_of(history, onset)
    chosen, rest = choose(scene, SYMPTOM, (), supported("reward_hacked", reason))
    text = f"Length grew from {base.level[at]:.3g} to {smooth[at]:.3g} tokens, and the reward with it: {reason}."
    return (_finding(history, length, p, found, chosen, rest, Severity.WARN, confidence, text),)


def _paid_for_length(history: History, length: Course, since: int, now: int) -> tuple[str, float]:
    success = _stayed(history, "reward/success", since, now)
    if success:
        return f"successes did not rise ({success})", 0.8
    for course in held_out(history):
        old, new = course.between(-1, since).values[-3:], course.between(since + 1, now).values[-3:]
        if len(old) and len(new) >= 2 and float(np.median(new)) <= float(np.median(old)) + 0.02:
            return f"{course.name} did not rise ({np.median(old):.3g} to {np.median(new):.3g})", 0.8
    pay: LengthPay | None = length_pay(history, now)
    if pay is not None and pay.pays:
        return pay.text, 0.75
    part = _part_that_follows(history, length, since, now)
    return (part, 0.6) if part else ("", 0.0)


def _stayed(history: History, name: str, since: int, now: int) -> str:
    c = history.course(name).finite
    old, new = c.between(-1, since).values[-5:], c.between(since + 1, now).values[-5:]
    if not len(old) or len(new) < 5:
        return ""
    before, after = float(np.median(old)), float(np.median(new))
    return f"{before:.2f} to {after:.2f}" if after <= before + 0.03 else ""


def _part_that_follows(history: History, length: Course, since: int, now: int) -> str:
    """A part that rises in step with length while another part falls or stands."""
    steps = length.between(since, now).steps
    means = [c for c in history.matching("reward/part/") if c.name.endswith("/mean") and c.name.count("/") == 3]
    if len(means) < 2 or len(steps) < 8:
        return ""
    sizes = smooth_on(history, length.name, steps, 3)
    rising, standing = "", ""
    for c in means:
        values = smooth_on(history, c.name, steps, 3)
        if not np.isfinite(values).all():
            continue
        moved = float(np.median(values[-4:]) - np.median(values[:4]))
        spread = float(np.ptp(values))
        if spread > 0 and moved > 0.5 * spread and float(np.corrcoef(values, sizes)[0, 1]) > 0.9:
            rising = rising or c.name
        elif moved <= 0.02:
            standing = standing or c.name
    return f"{rising} rises in step with the length, {standing} does not" if rising and standing else ""


def _finding(
    history: History, length: Course, p: Progress, found: Episode, chosen: Candidate, rest: tuple[Candidate, ...],
    severity: Severity, confidence: float, summary: str,
) -> Finding:  # fmt: skip
    at, onset = found.point(length.steps), int(length.steps[found.onset])
    step = int(length.steps[at])
    evidence = [
        Observation(length.name, onset, float(length.values[found.onset]), "its onset"),
        Observation(length.name, step, float(length.values[at]), "its newest value"),
        Observation(p.name, step, float(p.now[at]), f"at the start {p.start:.3g}"),
    ]
    cut = history.course("rollout/truncated_share").at(step)
    if cut is not None:
        evidence.append(Observation("rollout/truncated_share", step, cut, "share that reaches the cap"))
    return Finding(
        NAME, SYMPTOM, chosen.cause, severity, confidence, summary, onset, found.end(length.steps), tuple(evidence),
        rest,
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Attempts get longer without getting better",
    pattern="Mean length (median of 3) above 1.6 times its lowest settled level so far, and above it by 2 tokens and 5 "
    "times its noise, at five points in a row, while the reward did not rise since that level; or the reward rose with "
    "it, and successes, held-out score or the samples show that it pays for length.",
    needs=(("rollout/length_mean",), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=(
        "reward/success", "rollout/truncated_share", "rollout/length_wrong_mean", "rollout/length_correct_mean",
        "reward/part/{part}/mean", "policy/clip_fraction_high", "logprobs/mismatch_mean",
    ),
    yields_to=(
        "truncation", "reward_hacking", "mismatch", "learning_rate", "reward_collapse", "ratio_tail", "clip_high",
        "nonfinite",
    ),
)  # fmt: skip

"""Entropy climbs while the reward falls: the text turns to noise."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import episode, first_of, lowest_so_far, noise_so_far, start_level
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose

NAME = "entropy_explosion"
SYMPTOM = "entropy_explosion"
FACTOR = 3.0
RISE = 0.1
_ORDER = (
    "weights_corrupted_in_sync",
    "stale_weights",
    "data_too_old",
    "batch_reused_too_often",
    "learning_rate_too_high",
    "policy_collapsed",
    "length_cap_too_short",
)


def judge(history: History) -> Sequence[Finding]:
    """Entropy over three times its lowest level: a fault if the reward fell, worth knowing if it only stands."""
    entropy = first_of(history, "policy/entropy", "policy/sampled_entropy")
    if len(entropy) < 6:
        return ()
    smooth = rolling_median(entropy.values, 3)
    low = lowest_so_far(rolling_median(entropy.values, 5))
    rise = smooth - low
    high = (smooth > FACTOR * low) & (rise > RISE) & (rise > 4.0 * noise_so_far(entropy.values))
    p = progress(history, entropy.steps)
    calm = ~(smooth > 1.5 * low)
    falling = p.fallen(share=0.12, sigmas=2.0)
    found, severity = episode(high & p.fallen(), 2, calm | ~falling), Severity.WARN
    if found is None:
        above_start = smooth > FACTOR * start_level(entropy.values, 5)
        found, severity = episode(high & above_start & p.stands, 8, calm), Severity.INFO
    if found is None:
        return ()
    at, onset = found.point(entropy.steps), int(entropy.steps[found.onset])
    if severity is Severity.WARN and bool(p.lost[found.onset : at + 1].any()):
        severity = Severity.CRITICAL
    text = f"from {low[at]:.3g} to {smooth[at]:.3g} nats"
    default = supported("policy_collapsed", f"entropy rose {text} and the reward fell")
    if severity is Severity.INFO:
        default = supported("learning_rate_too_high", f"entropy rose {text} without a gain in reward")
    order = tuple(c for c in _ORDER if c != "learning_rate_too_high" or not p.had_learnt(found.onset))
    chosen, differential = choose(scene_of(history, onset), SYMPTOM, order, default)
    return (
        Finding(
            NAME,
            SYMPTOM,
            chosen.cause,
            severity,
            0.5 if chosen is not default else 0.35,
            f"Entropy rose {text} per token; the reward is {p.now[at]:.3g}, at best it was {p.best[at]:.3g}.",
            onset,
            found.end(entropy.steps),
            (
                Observation(entropy.name, int(entropy.steps[at]), float(entropy.values[at]), f"it was {low[at]:.3g}"),
                Observation(p.name, int(entropy.steps[at]), float(p.now[at]), f"its best was {p.best[at]:.3g}"),
            ),
            differential,
        ),
    )


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="Entropy climbs while the reward falls",
    pattern="Entropy (median of 3) above 3 times its lowest level so far, by 0.1 nats and 4 times its noise: "
    "a warning if at two points in a row the reward also lies clearly below its best, for information if it only "
    "does not rise and entropy is 3 times its start for eight points.",
    needs=(("policy/entropy", "policy/sampled_entropy"), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("policy/grad_norm", "policy/anchor_kl", "rollout/truncated_share", "logprobs/mismatch_mean"),
    yields_to=("mismatch", "learning_rate", "nonfinite", "ratio_tail", "clip_high", "kl_high"),
)

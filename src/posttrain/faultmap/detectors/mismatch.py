"""Sampler and trainer differ: from the first step, from one step on, or more and more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.gap import Gap, Shape, find_gap, rounding_level
from posttrain.faultmap.history import History
from posttrain.faultmap.patterns_progress import progress
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "mismatch"
SEVERE = 0.5
"""Nats: typical tokens are off by a factor of 1.6."""


def judge(history: History) -> Sequence[Finding]:
    """The gap that opened first."""
    gap = find_gap(history)
    if gap is None:
        return ()
    symptom = f"mismatch_{gap.shape}"
    scene = scene_of(history, gap.onset_step)
    return (
        Finding(
            NAME,
            symptom,
            gap.cause,
            _severity(history, gap),
            gap.confidence,
            _summary(gap),
            gap.onset_step,
            gap.episode.end(gap.course.steps),
            _evidence(history, gap),
            causes_of(scene, symptom, supported(gap.cause, gap.reason)),
        ),
    )


def _severity(history: History, gap: Gap) -> Severity:
    if gap.shape is Shape.FROM_START and gap.cause == "numerics_differ":
        tolerable = max(1.5 * rounding_level(history.facts), 0.02)
        return Severity.WARN if gap.level > tolerable else Severity.INFO
    p = progress(history, gap.course.steps)
    if gap.level >= SEVERE and p.known and bool(p.fallen()[-1]):
        return Severity.CRITICAL
    return Severity.WARN


def _summary(gap: Gap) -> str:
    level = f"{gap.level:.2g} nats per token"
    match gap.shape:
        case Shape.FROM_START:
            return f"Sampler and trainer differ by {level} from the first step: {gap.reason}."
        case Shape.JUMP:
            return (
                f"Sampler and trainer parted at step {gap.onset_step}: from {gap.before:.2g} to {level}; {gap.reason}."
            )
        case Shape.GROWTH:
            return f"Sampler and trainer drift apart since step {gap.onset_step}: now {level}; {gap.reason}."


def _evidence(history: History, gap: Gap) -> tuple[Observation, ...]:
    steps = gap.course.steps
    newest = int(steps[gap.episode.point(steps)])
    size = float(gap.course.values[gap.episode.point(steps)])
    seen = [Observation(gap.course.name, newest, size, "difference of the log-probs of sampled tokens")]
    if np.isfinite(gap.before):
        before = int(steps[gap.episode.onset - 1])
        seen.insert(0, Observation(gap.course.name, before, gap.before, "its level before"))
    for name, shows in (
        ("logprobs/mismatch_bias", "mean of trainer minus sampler: its sign is the direction of the gap"),
        ("logprobs/first_token_mismatch_mean", "the first token alone"),
        ("policy/sampled_entropy", "beside the policy's entropy: tokens come from a hotter or colder distribution"),
        ("schedule/staleness_mean", "age of the data in versions"),
    ):
        value = history.course(name).at(newest)
        if value is not None and np.isfinite(value):
            seen.append(Observation(name, newest, value, shows))
    return tuple(seen)


DETECTOR = Detector(
    name=NAME,
    symptom="mismatch_from_start",
    title="Sampler and trainer are not the same policy",
    pattern="Mean |d| of the first 20 points above what the number format explains (0.06 nats, 0.002 in float32), or "
    "of a clear direction (0.002 and more); or three points in a row above 4 times the lowest level so far plus 0.004 "
    "nats (0.01 where the age of the data is unknown), also relative to the root of the entropy. One that falls back "
    "to nothing and grows again: weights that arrive now and then; one that grows for some updates and then stays: old "
    "data; one without a token that is much less likely in the trainer: a colder sampler.",
    needs=(("logprobs/mismatch_mean", "logprobs/mismatch_k3", "logprobs/probability_difference_mean"),),
    judge=judge,
    sharpened_by=(
        "logprobs/mismatch_bias",
        "logprobs/first_token_mismatch_mean",
        "logprobs/ratio_max",
        "logprobs/mismatch_max",
        "policy/entropy",
        "policy/sampled_entropy",
        "schedule/staleness_mean",
    ),
)

"""The gap between sampler and trainer: when it opened, how it goes on, and what its shape says about the cause.

d = trainer's minus sampler's log-prob of a sampled token, p the trainer's distribution, q the one sampled from.
What the shape says follows from definitions:

- Tokens come from q, so the mean of -log p over them exceeds the entropy of p by sum (q - p)(-log p). For q = p at
  another temperature, log q = b log p + const, this is (1 - b) Var(log p) to first order, while mean |d| is
  |1 - b| times the mean deviation of log p: their quotient is of the order of 2, of one sign. Rounding has no
  direction, and its quotient is near 0.
- If q is reported truthfully, mean d = -KL(q | p) <= 0. A clearly positive mean d means that tokens were not drawn
  from the reported distribution: log-probs from before the temperature.
- If q is p cut to a top set and renormalised, d = log(kept mass) <= 0 for every token: mean d = -mean |d|.
- Old weights: the gap grows with each update; a temperature or rounding makes one that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from posttrain.faultmap.finding import Candidate, Verdict
from posttrain.faultmap.history import Course, Facts, History, Steps, Values
from posttrain.faultmap.patterns import rolling_median
from posttrain.faultmap.patterns_events import Episode, episode, first_of, lowest_so_far
from posttrain.faultmap.patterns_progress import progress

EXACT = 1e-4
"""Nats: below it two computations in float32 agree."""
START_POINTS = 5
SIGNATURE_POINTS = 20
SIGMAS = 4.0
"""A direction must be so clear; more so for fewer points, whose spread is badly known."""
SURE_SIGMAS = 8.0
"""So clear that a direction counts although rounding explains the size."""


class Shape(StrEnum):
    """How a gap came about."""

    FROM_START = "from_start"
    JUMP = "jump"
    GROWTH = "growth"


@dataclass(frozen=True, slots=True)
class Signature:
    """Shape of d over a stretch; NaN where it is not logged.

    ``direction`` is (mean of -log p of sampled tokens - entropy) / mean |d|, with ``direction_sigmas`` of noise;
    ``bias`` mean d / mean |d|, with ``bias_sigmas``; ``first_token`` the first token's mean |d| over that of all.
    """

    direction: float
    direction_sigmas: float
    bias: float
    bias_sigmas: float
    ratio_max: float
    first_token: float

    @property
    def is_temperature(self) -> bool:
        """Tokens come from the same distribution at another temperature, or are reported before it."""
        return (abs(self.direction) >= 1.1 and self.direction_sigmas >= SIGMAS) or self.is_unscaled

    @property
    def is_unscaled(self) -> bool:
        """Mean d is positive: the reported log-probs are not those of the distribution sampled from."""
        return self.bias >= 0.12 and self.bias_sigmas >= SIGMAS

    @property
    def is_support(self) -> bool:
        """Every token is less likely in the trainer, by the mass that was cut off."""
        return self.bias <= -0.85 and not self.ratio_max > 1.05

    @property
    def is_prompt(self) -> bool:
        """The first token's gap stands out."""
        return self.first_token >= 3.5


@dataclass(frozen=True, slots=True)
class Gap:
    """The gap that was found. ``level`` is its newest median, ``before`` what it was before the onset (NaN: nothing).

    ``growth`` is its newest level over that right after the onset; ``aged`` how many versions older the data
    became (NaN where not logged).
    """

    course: Course
    shape: Shape
    episode: Episode
    level: float
    before: float
    growth: float
    aged: float
    signature: Signature
    cause: str
    confidence: float
    reason: str

    @property
    def onset_step(self) -> int:
        """Step at which it opened."""
        return int(self.course.steps[self.episode.onset])


def gap_course(history: History) -> Course:
    """Mean |d| per step; where only the k3 divergence is logged, the |d| of a normal d with that divergence."""
    if not history.has("logprobs/mismatch_mean") and history.has("logprobs/mismatch_k3"):
        k3 = first_of(history, "logprobs/mismatch_k3")
        return Course(k3.name, k3.steps, 0.8 * np.sqrt(2.0 * np.maximum(k3.values, 0.0)))
    return first_of(history, "logprobs/mismatch_mean", "logprobs/probability_difference_mean")


def rounding_level(facts: Facts) -> float:
    """Mean |d| that number formats and kernels explain, in nats: half-precision formats where nothing is known."""
    if facts.compute_dtype is not None and facts.compute_dtype.removeprefix("torch.") == "float32":
        return 0.002
    return 0.06 * (3.0 if facts.mixture_of_experts else 1.0)


def find_gap(history: History) -> Gap | None:
    """The gap that opened first, or ``None``."""
    d = gap_course(history)
    if not len(d):
        return None
    opened = _opened(history, d)
    if opened is not None:
        return _explain_opened(history, d, opened)
    if len(d) < START_POINTS:
        return None
    return _from_start(history, d)


def signature(history: History, d: Course, start: int) -> Signature:
    """Shape of d over up to `SIGNATURE_POINTS` points from an index on."""
    steps = d.steps[start : start + SIGNATURE_POINTS]
    size = d.values[start : start + SIGNATURE_POINTS]
    mean = float(np.mean(size)) if len(size) else float("nan")
    cross = _at(history, "policy/sampled_entropy", steps) - _at(history, "policy/entropy", steps)
    bias = _at(history, "logprobs/mismatch_bias", steps)
    first = _at(history, "logprobs/first_token_mismatch_mean", steps)
    top = _at(history, "logprobs/ratio_max", steps)
    return Signature(
        _quotient(cross, mean), _sigmas(cross), _quotient(bias, mean), _sigmas(bias), _largest(top),
        _quotient(first, mean),
    )  # fmt: skip


def _at(history: History, name: str, steps: Steps) -> Values:
    course = history.course(name).finite
    if not len(course):
        return np.full(len(steps), np.nan)
    index = np.minimum(np.searchsorted(course.steps, steps), len(course) - 1)
    return np.where(course.steps[index] == steps, course.values[index], np.nan)


def _quotient(values: Values, scale: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) / scale if len(known) and scale > 0 else float("nan")


def _largest(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _sigmas(values: Values) -> float:
    """Mean over its standard error, from the spread of the values themselves; less for few values, NaN under 4."""
    known = values[np.isfinite(values)]
    if len(known) < 4:
        return float("nan")
    spread = float(np.std(known, ddof=1))
    mean = abs(float(np.mean(known)))
    if spread == 0.0:
        return float("inf") if mean > 0 else 0.0
    return mean / (spread / np.sqrt(len(known))) / (1.0 + 3.0 / len(known))


def _opened(history: History, d: Course) -> Episode | None:
    """A gap that departs from the lowest level before, and not because entropy came back."""
    values, n = d.values, len(d)
    if n < 4:
        return None
    settle = 1 if values[0] < EXACT else 2
    low = np.concatenate([[np.nan], lowest_so_far(rolling_median(values, 5), settle)[:-1]])
    noise_floor = 0.01 if _may_lag(history) else 0.004
    sick = values > 4.0 * low + noise_floor
    quiet = ~(values > 2.0 * low + EXACT)
    entropy = first_of(history, "policy/entropy").on(d.steps)
    if np.isfinite(entropy).all() and (entropy > 0).all():
        # Rounding and temperature act on logits: their gap follows the spread of log-probs, about as sqrt(entropy).
        relative = values / np.sqrt(entropy)
        lowest = np.concatenate([[np.nan], lowest_so_far(rolling_median(relative, 5), settle)[:-1]])
        sick &= relative > 3.0 * lowest
    return episode(sick, 2 if settle == 1 else 3, quiet)


def _may_lag(history: History) -> bool:
    return history.facts.asynchronous is not False and not history.has("schedule/staleness_mean")


def _aged(history: History, onset_step: int) -> float:
    c = history.course("schedule/staleness_mean").finite
    old, new = c.values[c.steps < onset_step], c.values[c.steps >= onset_step]
    if not len(new):
        return float("nan")
    return float(np.median(new[-10:])) - (float(np.median(old[-10:])) if len(old) else 0.0)


def _explain_opened(history: History, d: Course, found: Episode) -> Gap | None:
    start, step = found.onset, int(d.steps[found.onset])
    before = float(np.median(d.values[max(start - 8, 0) : start])) if start else float("nan")
    after = d.values[start:]
    early, late = float(np.median(after[:3])), float(np.median(after[-5:]))
    growth = late / early if early > 0 and len(after) >= 6 else float("nan")
    aged = _aged(history, step)
    is_jump = before < EXACT or float(np.median(after[:2])) > 3.0 * before + 0.002
    shape = Shape.JUMP if is_jump else Shape.GROWTH
    sign = signature(history, d, start)
    cause, confidence, reason = _why_opened(history, d, start, shape, before, growth, aged, sign)
    if cause == "data_too_old" and late < 0.1:
        return None
    return Gap(d, shape, found, late, before, growth, aged, sign, cause, confidence, reason)


def _why_opened(
    history: History, d: Course, start: int, shape: Shape, before: float, growth: float, aged: float, sign: Signature
) -> tuple[str, float, str]:
    if aged >= 0.5:
        return "data_too_old", 0.7, f"the data became {aged:.1f} versions older at the same time"
    if sign.is_support:
        return "support_not_matched", 0.8, "every token is less likely in the trainer, by the mass cut off"
    stays = not growth > 1.5
    if sign.is_unscaled and stays:
        return "temperature_not_matched", 0.8, "the reported log-probs are not of the distribution sampled from"
    if _is_garbage(history, d, start):
        return "weights_corrupted_in_sync", 0.7, "the reward fell to nothing in the same step"
    if stays and np.isfinite(growth) and sign.is_temperature:
        return "temperature_not_matched", 0.7, f"it stays, and has a direction ({sign.direction:+.1f} times its size)"
    if growth > 1.5:
        return "stale_weights", 0.85, f"it grew {growth:.1f} times since it opened, as the trainer moved on"
    if stays and np.isfinite(growth) and d.values[start:].max() < 0.1:
        return "numerics_differ", 0.5, "it stays at one level and has no direction"
    if shape is Shape.JUMP:
        return "stale_weights", 0.6, "it opened at once while the trainer's weights moved"
    return "numerics_differ", 0.5, "it grows slowly, from a level that rounding explains"


def _is_garbage(history: History, d: Course, start: int) -> bool:
    """Reward falls to near nothing within two points of the jump, below where the run began."""
    p = progress(history, d.steps)
    if not p.known or start < 3 or d.values[start : start + 3].max() < 0.3:
        return False
    raw = first_of(history, p.name).on(d.steps)
    past, now = float(np.nanmedian(raw[max(start - 5, 0) : start])), float(np.nanmedian(raw[start : start + 3]))
    return past - now > 0.1 * p.span and now < 0.5 * p.start


def _from_start(history: History, d: Course) -> Gap | None:
    level, sign = float(np.median(d.values[:SIGNATURE_POINTS])), signature(history, d, 0)
    rounding = rounding_level(history.facts)
    is_temperature = sign.is_temperature and not _lags(history)
    is_sure = sign.is_support or (is_temperature and max(sign.direction_sigmas, sign.bias_sigmas) >= SURE_SIGMAS)
    is_prompt = sign.is_prompt and level * sign.first_token >= 2.0 * rounding
    if level < rounding and not (level >= 0.002 and is_sure) and not is_prompt:
        return None
    cause, confidence, reason = _why_from_start(history, level, sign, is_temperature, is_prompt)
    newest = float(np.median(d.values[-5:]))
    whole = Episode(0, START_POINTS - 1, None)
    growth = newest / level if level > 0 else float("nan")
    return Gap(d, Shape.FROM_START, whole, level, float("nan"), growth, float("nan"), sign, cause, confidence, reason)


def _lags(history: History) -> bool:
    """Old data has a direction too: the policy has sharpened since."""
    ages = history.course("schedule/staleness_mean").finite.values
    return bool(len(ages) and np.median(ages) > 0) or (not len(ages) and history.facts.asynchronous is True)


def _why_from_start(
    history: History, level: float, sign: Signature, is_temperature: bool, is_prompt: bool
) -> tuple[str, float, str]:
    if sign.is_support:
        return "support_not_matched", 0.85, "every token is less likely in the trainer, by the mass cut off"
    if sign.is_unscaled:
        return "temperature_not_matched", 0.85, "the reported log-probs are not of the distribution sampled from"
    if is_temperature:
        side = "hotter" if sign.direction > 0 else "colder"
        return "temperature_not_matched", 0.85, f"the tokens come from a {side} distribution than the trainer's"
    if is_prompt:
        return "prompt_handled_differently", 0.7, f"the first token's gap is {sign.first_token:.1f} times the mean"
    if level >= 1.0:
        return "weights_corrupted_in_sync", 0.5, "a gap of this size means different weights"
    if history.facts.temperature not in (None, 1.0) and not np.isfinite(sign.direction) and level >= 0.1:
        return "temperature_not_matched", 0.5, f"the temperature is {history.facts.temperature:g}, and the gap is large"
    return "numerics_differ", 0.6, "it is there from the first step and has no direction"


_SAYS: Mapping[str, str] = {
    "temperature_not_matched": "the gap has no direction",
    "support_not_matched": "the gap is not of one sign",
    "prompt_handled_differently": "the first token's gap does not stand out",
    "numerics_differ": "rounding does not explain it",
    "stale_weights": "it was there before any update, or does not follow the updates",
    "weights_corrupted_in_sync": "the samples are not garbage",
}
GAP_CAUSES = (*_SAYS, "stale_cache", "data_too_old")
"""Causes that this module can judge."""


def weigh_gap(history: History, causes: Sequence[str], onset: int) -> list[Candidate]:
    """What the gap says about each of ``causes`` (of `GAP_CAUSES`) of a symptom that began at ``onset``."""
    d = gap_course(history)
    gap = find_gap(history) if causes else None
    if gap is not None and gap.onset_step > onset + _some_points(d):
        gap = None
    return [_weigh_age(history, onset) if c == "data_too_old" else _weigh(d, gap, c) for c in causes]


def _weigh(d: Course, gap: Gap | None, cause: str) -> Candidate:
    if not len(d):
        return Candidate(cause, Verdict.UNKNOWN, "sampler and trainer are not compared", ("logprobs/mismatch_mean",))
    if gap is None:
        level = float(np.median(d.values[-5:]))
        return Candidate(cause, Verdict.RULED_OUT, f"sampler and trainer agree (mean |d| {level:.2g} nats)")
    if gap.cause == cause:
        return Candidate(cause, Verdict.SUPPORTED, f"mean |d| is {gap.level:.2g} nats: {gap.reason}")
    if cause == "stale_cache":
        return Candidate(cause, Verdict.UNKNOWN, "the gap is not logged for prompts seen before and new ones apart")
    return Candidate(cause, Verdict.RULED_OUT, f"{_SAYS[cause]}: {gap.reason}")


def _some_points(d: Course) -> int:
    return int(np.median(np.diff(d.steps))) * 3 if len(d) > 1 else 0


def _weigh_age(history: History, onset: int) -> Candidate:
    cause = "data_too_old"
    ages = history.course("schedule/staleness_mean").finite
    if not len(ages):
        if history.facts.asynchronous is False:
            return Candidate(cause, Verdict.RULED_OUT, "sampling and training alternate")
        return Candidate(cause, Verdict.UNKNOWN, "the age of the data is not logged", ("schedule/staleness_mean",))
    now = float(np.median(ages.values[ages.steps >= onset][-10:])) if (ages.steps >= onset).any() else float("nan")
    aged = _aged(history, onset)
    if now >= 2.0 and (aged >= 0.5 or not (ages.steps < onset).any()):
        return Candidate(cause, Verdict.SUPPORTED, f"the data is {now:.1f} versions old")
    return Candidate(cause, Verdict.RULED_OUT, f"the data is {now:.1f} versions old and did not age")

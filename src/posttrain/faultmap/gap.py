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
- Old weights: after k updates the gap is about k times that of one; a temperature, a prompt or rounding makes one that
  is there at once and stays. Data of a fixed age makes one that grows for as many updates and then stays.
- A sampler colder than the trainer draws no token that is much less likely in the trainer (`cold_tail`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from posttrain.faultmap.gap_shape import COLD_SHARE, LEVEL, cold_tail, levels_off, resets
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
DIRECTION = 1.4
RAMP = 1.7
"""A gap of 1, 2, 3, 4... has 2.3 times its first half in the second; one that stays has 1."""
NO_RAMP = 1.15
"""Under it the gap had its size at once: what grows later follows the policy, not the number of updates."""
TOO_LARGE = 0.12
"""Nats: number formats alone do not reach it between two computations in float32."""
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
    ``bias`` mean d / mean |d|, with ``bias_sigmas``; ``first_token`` the first token's mean |d| over that of all;
    ``cold`` the share of points without a token that is much less likely in the trainer.
    """

    direction: float
    direction_sigmas: float
    bias: float
    bias_sigmas: float
    ratio_max: float
    first_token: float
    cold: float

    @property
    def is_temperature(self) -> bool:
        """Tokens come from the same distribution at another temperature, or are reported before it."""
        has_direction = abs(self.direction) >= DIRECTION and self.direction_sigmas >= SIGMAS
        return has_direction or self.is_unscaled or self.is_cold

    @property
    def is_cold(self) -> bool:
        """No sampled token is much less likely in the trainer, while others are much likelier."""
        return self.cold >= COLD_SHARE

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

    ``ramp`` is the second half over the first of up to six points from the onset on, ``growth`` its newest level over
    the first three (NaN for fewer points); ``aged`` how many versions older the data became (NaN where not logged).
    """

    course: Course
    shape: Shape
    episode: Episode
    level: float
    before: float
    ramp: float
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
        _quotient(first, mean), cold_tail(history, steps),
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
    starts_exact = values[0] < EXACT or float(values[1:4].min()) > 10.0 * values[0]
    settle = 1 if starts_exact else 2
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


def aged_by(history: History, onset_step: int) -> float:
    """How many versions older the data became at a step; NaN where its age is not logged."""
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
    is_jump = before < EXACT or float(np.median(after[:2])) > 3.0 * before + 0.002
    shape = Shape.JUMP if is_jump else Shape.GROWTH
    opened = Gap(
        d, shape, found, late, before, _ramp(after), growth, aged_by(history, step), signature(history, d, start),
        "numerics_differ", 0.5, "",
    )  # fmt: skip
    cause, confidence, reason = _why_opened(history, opened)
    if cause == "data_too_old" and _is_tolerable(opened, start):
        return None
    return replace(opened, cause=cause, confidence=confidence, reason=reason)


def _is_tolerable(gap: Gap, start: int) -> bool:
    """A small gap of old data; a run that is made so from the start may have a larger one."""
    if np.isfinite(gap.aged):
        return gap.level < 0.1
    highest = float(rolling_median(gap.course.values[start:], 5).max())
    return highest < (0.1 if start <= 2 else 0.03)


def _ramp(after: Values) -> float:
    first = after[:6]
    half = len(first) // 2
    return float(np.mean(first[-half:]) / np.mean(first[:half])) if half >= 2 else float("nan")


def _why_opened(history: History, gap: Gap) -> tuple[str, float, str]:
    sign, d, start = gap.signature, gap.course, gap.episode.onset
    if gap.aged >= 0.5:
        return "data_too_old", 0.7, f"the data became {gap.aged:.1f} versions older at the same time"
    if sign.is_support:
        return "support_not_matched", 0.8, "every token is less likely in the trainer, by the mass cut off"
    after = d.values[start:]
    back = resets(after, gap.before, EXACT)
    if back >= 2 or (back == 1 and len(after) >= 8):
        return "stale_weights", 0.85, "it falls back to nothing now and then and grows again with each update"
    if sign.is_cold and not np.isfinite(gap.aged):
        return "temperature_not_matched", 0.75, "no sampled token is much less likely in the trainer, some far likelier"
    if levels_off(after):
        return "data_too_old", 0.65, "it grew with each of the first updates and then stayed, as data of one age does"
    if gap.ramp >= RAMP:
        return "stale_weights", 0.85, "it grew with each of the first updates, as the trainer moved on"
    if sign.is_unscaled:
        return "temperature_not_matched", 0.8, "the reported log-probs are not of the distribution sampled from"
    if _is_garbage(history, d, start):
        return "weights_corrupted_in_sync", 0.7, "the reward fell to nothing in the same step"
    if np.isfinite(gap.ramp) and sign.is_temperature:
        return (
            "temperature_not_matched",
            0.8,
            f"it is there at once and has a direction ({sign.direction:+.1f} of its size)",
        )
    if gap.growth > 1.5 and not (gap.shape is Shape.JUMP and gap.ramp < NO_RAMP):
        return "stale_weights", 0.75, f"it grew {gap.growth:.1f} times since it opened, as the trainer moved on"
    if not np.isfinite(gap.ramp) or _is_back_at_start(history, d, start):
        return "stale_weights", 0.55, "it opened at once while the trainer's weights moved"
    stays = len(after) >= 10 and gap.growth < LEVEL
    return _why_level(gap, is_level=stays and _has_learnt(history, d, start))


def _why_level(gap: Gap, *, is_level: bool) -> tuple[str, float, str]:
    """It came at once and has no direction. ``is_level``: it stays, and old weights would have shown in the reward."""
    is_large = gap.before < EXACT and gap.level >= TOO_LARGE
    if gap.signature.is_prompt or is_large:
        return "prompt_handled_differently", 0.5, "it is there at once, and larger than rounding makes it"
    if gap.shape is Shape.JUMP and gap.level >= max(TOO_LARGE, 8.0 * gap.before) and not is_level:
        return "stale_weights", 0.5, f"it is {gap.level / gap.before:.0f} times what rounding made before"
    if gap.shape is Shape.JUMP:
        return "numerics_differ", 0.5, "it is there at once, stays at one level and has no direction"
    return "numerics_differ", 0.5, "it grows slowly, from a level that rounding explains"


def _has_learnt(history: History, d: Course, start: int) -> bool:
    """By then the reward stood so far above its start that a return to old weights could be seen."""
    p = progress(history, d.steps)
    return p.known and start >= 5 and _around(history, p.name, d, start)[0] - p.start > 0.2 * p.span


def _is_back_at_start(history: History, d: Course, start: int) -> bool:
    """The samples are as good as those of the first steps again: the engine fell back to the weights of the start."""
    p = progress(history, d.steps)
    if not p.known or start < 5:
        return False
    past, now = _around(history, p.name, d, start)
    return past - p.start > 0.2 * p.span and now < p.start + 0.25 * (past - p.start)


def _around(history: History, name: str, d: Course, start: int) -> tuple[float, float]:
    raw = first_of(history, name).on(d.steps)
    return float(np.nanmedian(raw[max(start - 5, 0) : start])), float(np.nanmedian(raw[start : start + 3]))


def _is_garbage(history: History, d: Course, start: int) -> bool:
    """Reward falls to near nothing within two points of the jump, below where the run began."""
    p = progress(history, d.steps)
    if not p.known or start < 3 or d.values[start : start + 3].max() < 0.3:
        return False
    past, now = _around(history, p.name, d, start)
    return past - now > 0.1 * p.span and now < 0.5 * p.start


def _from_start(history: History, d: Course) -> Gap | None:
    level, sign = float(np.median(d.values[:SIGNATURE_POINTS])), signature(history, d, 0)
    rounding = rounding_level(history.facts)
    is_temperature = sign.is_temperature and not _lags(history)
    is_directed = is_temperature and max(sign.direction_sigmas, sign.bias_sigmas) >= SURE_SIGMAS
    is_sure = sign.is_support or sign.is_cold or is_directed
    is_prompt = sign.is_prompt and level * sign.first_token >= 2.0 * rounding
    if level < rounding and not (level >= 0.002 and is_sure) and not is_prompt:
        return None
    cause, confidence, reason = _why_from_start(history, level, sign, is_temperature, is_prompt)
    newest = float(np.median(d.values[-5:]))
    whole = Episode(0, START_POINTS - 1, None)
    growth = newest / level if level > 0 else float("nan")
    nan = float("nan")
    return Gap(d, Shape.FROM_START, whole, level, nan, nan, growth, nan, sign, cause, confidence, reason)


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
    if is_temperature and sign.is_cold:
        return "temperature_not_matched", 0.75, "no sampled token is much less likely in the trainer, some far likelier"
    if is_temperature:
        side = "hotter" if sign.direction > 0 else "colder"
        return "temperature_not_matched", 0.85, f"the tokens come from a {side} distribution than the trainer's"
    if is_prompt:
        return "prompt_handled_differently", 0.7, f"the first token's gap is {sign.first_token:.1f} times the mean"
    if level >= 1.0:
        return "weights_corrupted_in_sync", 0.5, "a gap of this size means different weights"
    if level >= TOO_LARGE and rounding_level(history.facts) < TOO_LARGE / 10:
        return "prompt_handled_differently", 0.45, "it is far larger than rounding in float32 makes it"
    if history.facts.temperature not in (None, 1.0) and not np.isfinite(sign.direction) and level >= 0.1:
        return "temperature_not_matched", 0.5, f"the temperature is {history.facts.temperature:g}, and the gap is large"
    return "numerics_differ", 0.6, "it is there from the first step and has no direction"

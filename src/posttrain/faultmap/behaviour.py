"""Did the policy's behaviour change? What the sampled text, the update and the engine look like now against before.

A policy that changes leaves traces in entropy, length, divergence or gradient. A reward that changes
without any of them was changed by the grader or by the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from posttrain.faultmap.finding import Observation
from posttrain.faultmap.history import History, Values
from posttrain.faultmap.patterns import noise


@dataclass(frozen=True, slots=True)
class Trait:
    """A signal that describes behaviour. Ratios are of value + ``floor``, so that tiny values do not count.

    ``is_text`` marks what can be seen in the sampled text alone, before any update speaks.
    """

    signal: str
    floor: float
    is_text: bool


TRAITS: tuple[Trait, ...] = (
    Trait("policy/entropy", 0.02, True),
    Trait("policy/sampled_entropy", 0.02, True),
    Trait("rollout/length_mean", 2.0, True),
    Trait("rollout/truncated_share", 0.1, True),
    Trait("rollout/unique_share", 0.1, True),
    Trait("policy/anchor_kl", 0.01, True),
    Trait("policy/grad_norm", 1e-3, False),
    Trait("policy/approx_kl", 1e-3, False),
    Trait("policy/clip_fraction_high", 0.01, False),
    Trait("policy/clip_fraction_low", 0.01, False),
    Trait("logprobs/mismatch_mean", 1e-3, False),
    Trait("logprobs/mismatch_k3", 1e-4, False),
)
FACTOR = 2.0
"""A trait has departed if it at least doubled or halved, and by more than 2.5 times its own noise."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A trait that left its level: ``factor`` is now over before."""

    trait: Trait
    step: int
    before: float
    now: float
    factor: float

    @property
    def rose(self) -> bool:
        """True if it is larger now."""
        return self.factor > 1.0

    def observation(self) -> Observation:
        """As a piece of evidence."""
        change = f"{self.factor:.2g} times its level of {self.before:.3g}"
        return Observation(self.trait.signal, self.step, self.now, change)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """``judged`` names the traits the log can show; ``departures`` those that left their level."""

    judged: tuple[str, ...]
    departures: tuple[Departure, ...]

    def departed(self, *signals: str) -> Departure | None:
        """The departure of one of these signals, if any."""
        return next((d for d in self.departures if d.trait.signal in signals), None)

    @property
    def is_text_known(self) -> bool:
        """True if something that describes the text itself could be judged."""
        return any(t.is_text and t.signal in self.judged for t in TRAITS)

    @property
    def has_text_changed(self) -> bool:
        """True if the sampled text looks different."""
        return any(d.trait.is_text for d in self.departures)


def compare(history: History, before: tuple[int, int], now: tuple[int, int], *, factor: float = FACTOR) -> Behaviour:
    """Each trait's level in two spans of steps (first, last), both ends included."""
    judged: list[str] = []
    departures: list[Departure] = []
    for trait in TRAITS:
        course = history.course(trait.signal).finite
        old, new = course.between(*before), course.between(*now)
        if len(old) < 2 or not len(new):
            continue
        judged.append(trait.signal)
        a, b = _level(trait, old.values), _level(trait, new.values)
        change = log((b + trait.floor) / (a + trait.floor)) if a + trait.floor > 0 and b + trait.floor > 0 else 0.0
        own = noise(np.log(np.maximum(old.values, 0.0) + trait.floor)) / np.sqrt(min(len(new), 4))
        if abs(change) >= max(log(factor), 2.5 * own):
            ratio = b / a if a > 0 else inf
            shown = ratio if np.isfinite(ratio) else exp(change)
            departures.append(Departure(trait, int(new.steps[-1]), a, b, shown))
    return Behaviour(tuple(judged), tuple(departures))


def _level(trait: Trait, values: Values) -> float:
    # A logged gradient norm is often that of one of several steps, and 0 where its groups said nothing.
    return float(np.mean(values)) if trait.signal == "policy/grad_norm" else float(np.median(values))

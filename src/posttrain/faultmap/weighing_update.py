"""Candidates of a differential diagnosis that need settings or several signals of the update to be judged."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from posttrain.faultmap.causes import SYMPTOMS
from posttrain.faultmap.finding import Candidate, Verdict
from posttrain.faultmap.gap_weighing import GAP_CAUSES, weigh_gap
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.weighing import Scene, Weigher, differential, ruled_out, supported, unknown

IN_A_ROW = 4
KL_TOO_FAR = 1.0
"""Nats per token from the reference or the proximal policy: beyond it the policy is another one."""


def causes_of(scene: Scene, symptom: str, *judged: Candidate) -> tuple[Candidate, ...]:
    """The differential diagnosis of a symptom; ``judged`` were weighed by the detector itself."""
    known = {candidate.cause for candidate in judged}
    left = [cause for cause in SYMPTOMS[symptom].causes if cause not in known]
    own = [UPDATE_WEIGHERS[cause](scene) for cause in left if cause in UPDATE_WEIGHERS]
    own += weigh_gap(scene.history, tuple(cause for cause in left if cause in GAP_CAUSES), scene.onset)
    return differential(scene, symptom, *judged, *own)


def updates_per_batch(history: History) -> float | None:
    """Optimizer steps on one batch: from the settings, or else as measured (at least 1)."""
    if history.facts.updates_per_batch is not None:
        return float(history.facts.updates_per_batch)
    measured = history.course("policy/updates").finite.values
    return max(1.0, float(np.median(measured))) if len(measured) else None


def staleness(history: History, first: int = -1) -> float | None:
    """Mean age of the data in versions from a step on; ``None`` where neither log nor settings tell."""
    course = history.course("schedule/staleness_mean").finite
    ages = course.values[course.steps >= first]
    if len(ages):
        return float(np.mean(ages))
    return 0.0 if history.facts.asynchronous is False else None


def peak(scene: Scene, signal: str, lead: int = 2) -> float | None:
    """Largest finite value of a signal from ``lead`` points before the onset on."""
    return peak_of(scene.history.course(signal).finite, scene, lead)


def peak_of(c: Course, scene: Scene, lead: int = 2) -> float | None:
    """Largest value of a course from ``lead`` points before the onset on."""
    from_here = max(int(np.searchsorted(c.steps, scene.onset)) - lead, 0)
    values = c.values[from_here : int(np.searchsorted(c.steps, scene.now, side="right"))]
    return float(values.max()) if len(values) else None


def _rate_too_high(s: Scene) -> Candidate:
    cause = "learning_rate_too_high"
    rates = s.history.course("policy/learning_rate").finite.values
    if len(rates) and float(rates.max()) == 0.0:
        return ruled_out(cause, "the learning rate is 0 throughout")
    divergences = {n: peak(s, n) for n in ("policy/anchor_kl", "policy/approx_kl")}
    for name, value in divergences.items():
        if value is not None and value > KL_TOO_FAR:
            return supported(cause, f"{name} reached {value:.3g} nats per token")
    norm = s.history.course("policy/grad_norm").finite
    # Single spikes, however many, are of single batches: a policy that is thrown away has them in a row.
    held = (
        np.min(np.lib.stride_tricks.sliding_window_view(norm.values, IN_A_ROW), axis=1) if len(norm) >= IN_A_ROW else []
    )
    level = Course(norm.name, norm.steps[IN_A_ROW - 1 :], np.asarray(held))
    before, top = norm.between(-1, s.onset - 1).values, peak_of(level, s)
    before = before[before > 0]
    if len(before) >= 3 and top is not None and top > 10 * float(np.median(before)) > 0:
        return supported(cause, f"the gradient norm rose from {float(np.median(before)):.3g} to {top:.3g}")
    distance = divergences["policy/anchor_kl"]
    if distance is not None and distance < 0.1:
        return ruled_out(cause, f"the policy stayed within {distance:.2g} nats per token of its reference")
    missing = () if distance is not None else ("policy/anchor_kl",)
    return Candidate(cause, Verdict.UNKNOWN, "no runaway divergence or gradient was logged", missing)


def _rate_too_low(s: Scene) -> Candidate:
    cause = "learning_rate_too_low"
    distance = s.newest("policy/anchor_kl")
    if distance is not None:
        text = f"{distance:.2g} nats per token from the reference"
        moved = distance >= 1e-3
        return ruled_out(cause, f"the policy has moved: {text}") if moved else supported(cause, f"only {text}")
    entropy = s.history.course("policy/entropy").finite.values
    if len(entropy) >= 10:
        start, now = float(np.median(entropy[:5])), float(np.median(entropy[-5:]))
        if start > 0 and abs(now - start) > 0.3 * start:
            return ruled_out(cause, f"entropy went from {start:.3g} to {now:.3g}")
    return unknown(cause, "policy/anchor_kl")


def _batch_reused(s: Scene) -> Candidate:
    cause = "batch_reused_too_often"
    updates = updates_per_batch(s.history)
    if updates is None:
        return unknown(cause, "policy/updates")
    if updates <= 1:
        return ruled_out(cause, "each batch is used for one update")
    clip, ess = s.newest("policy/clip_fraction_high"), s.newest("policy/ratio_ess")
    if clip is not None and clip > 0.1:
        return supported(cause, f"{updates:.0f} updates per batch, {clip:.0%} of the tokens clipped")
    if ess is not None and ess < 0.8:
        return supported(cause, f"{updates:.0f} updates per batch, an effective sample size of {ess:.2f}")
    if clip is None and ess is None:
        return unknown(cause, "policy/ratio_ess")
    return ruled_out(cause, f"{updates:.0f} updates per batch, but the ratios stay near 1")


def _anchor(s: Scene, cause: str) -> tuple[float, float] | Candidate:
    """Weight and divergence of the anchor, or what is said of ``cause`` where one is not known."""
    weight, kl = s.history.facts.anchor_weight, s.newest("policy/anchor_kl")
    if weight == 0:
        return ruled_out(cause, "the run has no anchor")
    if kl is None:
        return unknown(cause, "policy/anchor_kl")
    if weight is None:
        return Candidate(cause, Verdict.UNKNOWN, "the weight of the anchor is not known")
    return weight, kl


def _anchor_too_strong(s: Scene) -> Candidate:
    cause = "anchor_too_strong"
    known = _anchor(s, cause)
    if isinstance(known, Candidate):
        return known
    weight, kl = known
    text = f"weight {weight:g}, divergence {kl:.2g}"
    return ruled_out(cause, text) if kl > 0.5 or weight < 0.02 else supported(cause, text)


def _anchor_inert(s: Scene) -> Candidate:
    cause = "anchor_inert"
    known = _anchor(s, cause)
    if isinstance(known, Candidate):
        return known
    weight, kl = known
    text = f"the term is {weight * kl:.2g} at a divergence of {kl:.2g}"
    return supported(cause, text) if kl > KL_TOO_FAR and weight * kl < 0.05 else ruled_out(cause, text)


def _tiny_std(s: Scene) -> Candidate:
    cause = "tiny_std_division"
    largest = peak(s, "policy/advantage_abs_max")
    if largest is None:
        return unknown(cause, "policy/advantage_abs_max")
    size = s.history.facts.group_size
    # With the group's own standard deviation no advantage exceeds sqrt(G - 1); a batch-wide one stays near that.
    bound = 5.0 * math.sqrt(size) if size else 50.0
    text = f"the largest advantage is {largest:.3g}"
    return supported(cause, text) if largest > bound else ruled_out(cause, text)


def _length_bias(s: Scene) -> Candidate:
    cause = "length_bias"
    factors: list[float] = []
    for kind in ("wrong", "correct"):
        c = s.history.course(f"rollout/length_{kind}_mean").finite
        old, new = c.between(-1, s.onset).values[-8:], c.between(s.onset, s.now).values[-8:]
        if not len(old) or not len(new):
            return unknown(cause, "rollout/length_wrong_mean", "rollout/length_correct_mean")
        factors.append(float(np.median(new) / max(np.median(old), 1.0)))
    text = f"wrong attempts grew {factors[0]:.1f} times, right ones {factors[1]:.1f} times"
    return supported(cause, text) if factors[0] > 1.3 * factors[1] else ruled_out(cause, text)


UPDATE_WEIGHERS: Mapping[str, Weigher] = {
    "learning_rate_too_high": _rate_too_high,
    "learning_rate_too_low": _rate_too_low,
    "batch_reused_too_often": _batch_reused,
    "anchor_too_strong": _anchor_too_strong,
    "anchor_inert": _anchor_inert,
    "tiny_std_division": _tiny_std,
    "length_bias": _length_bias,
}


def choose(
    scene: Scene, symptom: str, order: tuple[str, ...], default: Candidate
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """The first cause of ``order`` that the log supports, else ``default``; and the whole differential diagnosis.

    ``default`` replaces what is weighed for its cause only where it is chosen.
    """
    candidates = causes_of(scene, symptom)
    weighed = {c.cause: c for c in candidates}
    found = next((weighed[c] for c in order if c in weighed and weighed[c].verdict is Verdict.SUPPORTED), default)
    if found.cause not in weighed:
        return found, (found, *candidates)
    return found, tuple(found if c.cause == found.cause else c for c in candidates)

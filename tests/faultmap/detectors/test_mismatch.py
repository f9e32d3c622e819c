"""Sampler against trainer: what the gap's shape and course say about its cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from series import history
from worlds import Step, World, stepwise

from posttrain.faultmap.detectors.mismatch import DETECTOR
from posttrain.faultmap.finding import Finding, Severity, Verdict
from posttrain.faultmap.history import Facts, History

Array = npt.NDArray[np.float64]
SYNC = Facts(asynchronous=False)
EXACT = Facts(asynchronous=False, compute_dtype="float32")


def found(run: History) -> Finding:
    findings = DETECTOR.judge(run)
    assert len(findings) == 1, findings
    return findings[0]


def test_an_engine_that_keeps_old_weights_shows_at_the_first_real_update() -> None:
    run = history(
        {
            "logprobs/mismatch_mean": [0.010, 0.018, 0.20, 0.21, 0.35],
            "policy/learning_rate": [0.0, 0.0, 1e-6, 1e-6, 1e-6],
        }
    )
    finding = found(run)
    assert (finding.symptom, finding.cause, finding.onset_step) == ("mismatch_jump", "stale_weights", 3)
    assert finding.severity is Severity.WARN


def test_a_gap_of_rounding_that_stays_is_healthy() -> None:
    assert not DETECTOR.judge(history({"logprobs/mismatch_mean": [0.010, 0.018, 0.015, 0.016, 0.015] * 4}))


@pytest.mark.parametrize("speed", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("onset", [1, 10, 30])
@pytest.mark.parametrize(("facts", "rounding"), [(EXACT, 1e-7), (SYNC, 0.01)])
def test_old_weights_make_a_gap_that_grows(speed: float, onset: int, facts: Facts, rounding: float) -> None:
    def fault(step: Step, k: int) -> None:
        step.gap += speed * (k + 1)
        step.skill = -2.0

    finding = found(World(fault=fault, onset=onset, facts=facts, rounding=rounding, seed=onset).run())
    assert finding.cause == "stale_weights"
    assert onset <= finding.onset_step <= onset + 8
    assert finding.symptom in ("mismatch_jump", "mismatch_growth")


@pytest.mark.parametrize("seed", range(4))
def test_a_finding_comes_soon_and_stays(seed: int) -> None:
    def fault(step: Step, k: int) -> None:
        step.gap = 0.2 + 0.02 * k

    run = World(fault=fault, onset=20, facts=SYNC, seed=seed, steps=50).run()
    seen = [DETECTOR.judge(past) for past in stepwise(run)]
    first = next(i for i, findings in enumerate(seen) if findings)
    assert 20 <= first <= 25
    assert all(findings and findings[0].cause == "stale_weights" for findings in seen[first:])
    assert len({findings[0].onset_step for findings in seen[first:]}) == 1


def constant_gap(**changes: float) -> World:
    def fault(step: Step, k: int) -> None:
        for name, value in changes.items():
            setattr(step, name, value)

    return World(fault=fault, onset=0, facts=SYNC)


@pytest.mark.parametrize("onset", [0, 15, 40])
@pytest.mark.parametrize(("gap", "direction"), [(0.06, 2.4), (0.2, -2.3), (0.4, 1.9)])
def test_a_temperature_has_a_direction_and_stays(onset: int, gap: float, direction: float) -> None:
    finding = found(replace(constant_gap(gap=gap, direction=direction), onset=onset).run())
    assert finding.cause == "temperature_not_matched"
    assert finding.severity is Severity.WARN
    assert abs(finding.onset_step - onset - 1) <= 1


def test_rounding_has_no_direction() -> None:
    assert found(constant_gap(gap=0.3).run()).cause == "numerics_differ"


def test_half_precision_informs_at_most_and_float32_warns() -> None:
    world = constant_gap(gap=0.05)
    assert not DETECTOR.judge(world.run())
    finding = found(replace(world, facts=EXACT).run())
    assert (finding.cause, finding.severity) == ("numerics_differ", Severity.WARN)


@pytest.mark.parametrize("level", [0.17, 0.4, 1.2])
@pytest.mark.parametrize("onset", [2, 20, 40])
def test_a_gap_too_large_for_rounding_that_opens_at_once_and_stays_is_another_input(level: float, onset: int) -> None:
    world = replace(constant_gap(gap=level), onset=onset, facts=EXACT, rounding=1e-7)
    assert found(world.run()).cause == "prompt_handled_differently"


def test_weights_refreshed_too_seldom_make_a_saw() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap = 0.02 * (k % 12 + 1)
        step.direction = 1.5

    finding = found(World(fault=fault, onset=10, facts=EXACT, rounding=1e-7).run())
    assert finding.cause == "stale_weights"


def test_an_engine_back_at_the_weights_of_the_start_samples_as_it_did_then() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap, step.skill = 0.3, -2.0

    world = World(fault=fault, onset=50, facts=SYNC, learnt_at=0.2, seed=2, steps=70)
    assert found(world.run()).cause == "stale_weights"


def test_a_first_token_apart_means_the_prompt() -> None:
    finding = found(constant_gap(gap=0.1, first_token=8.0).run())
    assert finding.cause == "prompt_handled_differently"


def test_lag_is_no_fault_of_the_engine() -> None:
    def fault(step: Step, k: int) -> None:
        step.staleness = 3.0
        step.gap = 0.05
        step.direction = 1.5

    assert not DETECTOR.judge(World(fault=fault, onset=10, facts=Facts(asynchronous=True)).run())


def test_a_gap_that_ages_with_the_data_is_the_schedules() -> None:
    def fault(step: Step, k: int) -> None:
        step.staleness = min(k / 2.0, 8.0)
        step.gap = 0.01 + 0.03 * step.staleness

    finding = found(World(fault=fault, onset=15, facts=Facts(asynchronous=True)).run())
    assert finding.cause == "data_too_old"


def test_garbage_right_after_a_sync_is_damage_not_age() -> None:
    def fault(step: Step, k: int) -> None:
        step.gap, step.skill, step.entropy = 1.5, -9.0, 2.5

    finding = found(World(fault=fault, onset=40, facts=SYNC, learnt_at=0.1).run())
    assert (finding.cause, finding.severity) == ("weights_corrupted_in_sync", Severity.CRITICAL)


def test_an_unknown_cause_names_what_to_log() -> None:
    finding = found(history({"logprobs/mismatch_mean": [0.4] * 12}))
    unknown = [c for c in finding.differential if c.verdict is Verdict.UNKNOWN]
    assert unknown or all(c.verdict is not Verdict.SUPPORTED for c in finding.differential if c.cause != finding.cause)


# From here on the numbers come from tokens that are really drawn.


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def top_p(logprobs: Array, mass: float) -> Array:
    order = np.argsort(-logprobs, axis=1)
    ranked = np.take_along_axis(np.exp(logprobs), order, 1)
    keep = np.zeros_like(logprobs, dtype=bool)
    np.put_along_axis(keep, order, np.cumsum(ranked, 1) - ranked < mass, 1)
    return log_softmax(np.where(keep, logprobs, -1e9))


def measured(kind: str, size: float, steps: int = 16, tokens: int = 800) -> History:
    """A run whose policy sharpens, with a fault at the sampler; every number as its definition says."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, float]] = []
    for t in range(steps):
        sharpness = np.exp(rng.normal(0.3 + 0.05 * t, 0.8, (tokens, 1)))
        logits = rng.standard_t(4, (tokens, 80)) * sharpness
        trainer = log_softmax(logits)
        drawn_from = reported = trainer
        if kind == "temperature":
            drawn_from = reported = log_softmax(logits / size)
        elif kind == "unscaled":
            drawn_from = trainer = log_softmax(logits / size)
            reported = log_softmax(logits)
        elif kind == "top_p":
            drawn_from = reported = top_p(trainer, size)
        elif kind == "rounding":
            drawn_from = reported = log_softmax(logits + size * rng.normal(size=logits.shape))
        token = (drawn_from + rng.gumbel(size=logits.shape)).argmax(1)
        at = np.arange(tokens)
        d = trainer[at, token] - reported[at, token]
        rows.append(
            {
                "logprobs/mismatch_mean": float(np.abs(d).mean()),
                "logprobs/mismatch_bias": float(d.mean()),
                "logprobs/ratio_max": float(np.exp(d.max())),
                "policy/sampled_entropy": float(-trainer[at, token].mean()),
                "policy/entropy": float(-(np.exp(trainer) * trainer).sum(1).mean()),
            }
        )
    return history({name: [row[name] for row in rows] for name in rows[0]}, facts=SYNC)


@pytest.mark.parametrize(
    ("kind", "size", "cause"),
    [
        ("temperature", 1.3, "temperature_not_matched"),
        ("temperature", 0.7, "temperature_not_matched"),
        ("temperature", 1.8, "temperature_not_matched"),
        ("unscaled", 0.6, "temperature_not_matched"),
        ("unscaled", 1.4, "temperature_not_matched"),
        ("top_p", 0.95, "support_not_matched"),
        ("top_p", 0.8, "support_not_matched"),
        ("rounding", 0.6, "numerics_differ"),
        ("rounding", 1.0, "numerics_differ"),
    ],
)
def test_drawn_tokens_show_the_cause(kind: str, size: float, cause: str) -> None:
    assert found(measured(kind, size)).cause == cause


def test_drawn_tokens_without_a_fault_show_none() -> None:
    assert not DETECTOR.judge(measured("rounding", 0.02))

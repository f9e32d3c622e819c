"""Reward that rises while the task is not solved better, and learning that only looks like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prefixes import watch
from reward_courses import Array, Batch, draw, healthy, learning, observe
from series import GivenSamples, history

from posttrain.faultmap.detectors.reward_hacking import DETECTOR
from posttrain.faultmap.finding import Finding, Severity, Verdict
from posttrain.faultmap.history import History, Sample

STEPS = 60


def hacked(onset: int, pay: float, seed: int, *, every: int = 5, interval: bool = True) -> dict[str, Array]:
    """From ``onset`` on more and more attempts collect ``pay`` without solving the task; success suffers."""
    rng, t = np.random.default_rng(seed), np.arange(STEPS)
    share = 0.97 / (1.0 + np.exp(-0.5 * (t - onset - 6)))
    success = learning(STEPS, 0.3, 0.5, 0.2) * (1.0 - 0.8 * share)
    latent = replace(healthy(success), length=120.0 * (1.0 + share))
    odds = np.log(success / (1 - success))[:, None] + rng.normal(0, 1.0, (STEPS, 8))
    wins = (rng.random((STEPS, 8, 8)) < 1.0 / (1.0 + np.exp(-odds))[:, :, None]).astype(float)
    tricks = rng.random((STEPS, 8, 8)) < share[:, None, None]
    courses = observe(np.maximum(wins, pay * tricks), wins, latent, rng)
    return courses | held_out(success, rng, every, interval)


def held_out(success: Array, rng: np.random.Generator, every: int, interval: bool) -> dict[str, Array]:
    """Pass@1 on 128 tasks every ``every`` steps, with the ends of its interval or without."""
    steps = np.arange(0, len(success), every)
    score = np.full(len(success), np.nan)
    score[steps] = rng.binomial(128, success[steps]) / 128
    courses = {"evaluation/held/pass@1": score}
    if interval:
        courses |= {"evaluation/held/pass@1_low": score - 0.086, "evaluation/held/pass@1_high": score + 0.086}
    return courses


def without(courses: dict[str, Array], *words: str) -> dict[str, Array]:
    return {k: v for k, v in courses.items() if not any(word in k for word in words)}


def hacking(found: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in found if f.cause == "reward_hacked" and f.severity >= Severity.WARN]


@pytest.mark.parametrize("onset", [3, 15, 30])
@pytest.mark.parametrize("pay", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("interval", [True, False])
def test_a_held_out_score_that_falls_or_stays_names_it(onset: int, pay: float, interval: bool) -> None:
    watched = watch(DETECTOR, history(without(hacked(onset, pay, 7, interval=interval), "part", "success")))
    first = watched.first()
    assert first is not None
    assert onset < first <= onset + 26
    (finding,) = watched.last
    assert (finding.symptom, finding.cause) == ("held_out_flat", "reward_hacked")
    assert abs(finding.onset_step - (onset + 6)) <= 12
    assert watched.flickers() <= 1


@pytest.mark.parametrize("onset", [5, 20])
@pytest.mark.parametrize("pay", [0.5, 1.0])
@pytest.mark.parametrize("kept", ["part", "reward/success"])
def test_the_part_of_the_task_tells_without_a_held_out_score(onset: int, pay: float, kept: str) -> None:
    courses = without(hacked(onset, pay, 3), "evaluation", "success" if kept == "part" else "part")
    (finding,) = hacking(watch(DETECTOR, history(courses)).last)
    assert finding.symptom == "reward_jump"
    assert abs(finding.onset_step - (onset + 6)) <= 10


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("interval", [True, False])
def test_learning_that_carries_over_is_not_hacking(seed: int, interval: bool) -> None:
    """Also where the held-out tasks are harder: as much is gained there in odds."""
    rng = np.random.default_rng(seed)
    success = learning(STEPS, 0.2, 0.9, 0.4, 15.0)
    harder = 1.0 / (1.0 + np.exp(-(np.log(success / (1 - success)) - 1.5)))
    courses = draw(healthy(success), rng, Batch(8, 8)) | held_out(harder, rng, 6, interval)
    watched = watch(DETECTOR, history(courses))
    assert watched.first() is None


def samples(text: str, share: float, reward: float, step: int) -> list[Sample]:
    """Twenty prompts, four attempts each; ``share`` of the attempts are ``text`` and earn ``reward``."""
    made: list[Sample] = []
    for prompt in range(20):
        for attempt in range(4):
            trick = (prompt * 4 + attempt) % 20 < 20 * share
            made.append(
                Sample(
                    step,
                    f"What is {prompt} plus {prompt}? Say why.",
                    text if trick else f"It is {2 * prompt + attempt % 2}, attempt {attempt}.",
                    reward if trick else float(attempt % 2 == 0),
                )
            )
    return made


def jump(before: str, after: str, share: float, reward: float = 1.0) -> History:
    """A rise from 0.3 to 0.9 at step 20 and the texts of steps 1 and 40."""
    rng = np.random.default_rng(0)
    courses = draw(healthy(learning(40, 0.3, 0.9, 0.5, 30.0)), rng, Batch(8, 8))
    given = GivenSamples({1: samples(before, 0.05, 1.0, 1), 40: samples(after, share, reward, 40)})
    return history(without(courses, "part", "success"), samples=given)


@pytest.mark.parametrize(
    "text",
    ["I am certain that this is right.", "", "1 2 3 4 5 6 7 8 9 10 11 12 13", "<answer>1<answer>2<answer>3<answer>"],
)
def test_paid_texts_that_do_not_depend_on_the_question_are_evidence(text: str) -> None:
    (finding,) = hacking(tuple(DETECTOR.judge(jump("It is 5.", text, 0.9))))
    assert finding.symptom == "reward_jump"
    assert "texts" in finding.summary


def test_texts_that_earn_nothing_are_no_evidence() -> None:
    assert not hacking(tuple(DETECTOR.judge(jump("It is 5.", "I am certain that this is right.", 0.9, 0.0))))


def test_texts_alike_before_and_after_are_no_evidence() -> None:
    run = jump("x", "I am certain that this is right.", 0.9)
    assert run.samples is not None
    early = samples("I am certain that this is right.", 0.9, 1.0, 1)
    same = history(
        {k: c.values for k, c in run.courses.items()},
        samples=GivenSamples({1: early, 40: run.samples.read(40)}),
    )
    assert not hacking(tuple(DETECTOR.judge(same)))


@pytest.mark.parametrize("seed", range(5))
def test_a_jump_off_a_plateau_alone_is_information_and_says_what_to_log(seed: int) -> None:
    rng = np.random.default_rng(seed)
    success = np.where(np.arange(50) < 25, 0.2, 0.8)
    latent = replace(healthy(success), length=np.where(np.arange(50) < 25, 40.0, 200.0))
    run = history(without(draw(latent, rng, Batch(16, 8)), "part", "success"))
    watched = watch(DETECTOR, run)
    assert watched.first() is None
    (finding,) = watched.last
    assert finding.severity is Severity.INFO
    assert abs(finding.onset_step - 26) <= 1
    doubt = next(c for c in finding.differential if c.cause == "reward_hacked")
    assert doubt.verdict is Verdict.UNKNOWN
    assert "evaluation/{environment}/reward_mean" in doubt.log_this

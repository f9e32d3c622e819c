"""A value is NaN or infinite: which came first, and what preceded it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.finding import Candidate, Finding, Observation, Severity
from posttrain.faultmap.history import Course, History
from posttrain.faultmap.patterns_reward import compact
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import choose

NAME = "nonfinite"
SYMPTOM = "nonfinite"
CORE = (
    "logprobs/mismatch_mean",
    "logprobs/mismatch_k3",
    "reward/mean",
    "policy/ratio_mean",
    "policy/approx_kl",
    "policy/anchor_kl",
    "policy/entropy",
    "policy/advantage_abs_max",
    "policy/loss",
    "policy/grad_norm",
)
"""In the order in which a step computes them: the cause of a bad step is the first of them."""
EXTREMES = ("policy/ratio_max", "logprobs/ratio_max", "logprobs/mismatch_max")


def judge(history: History) -> Sequence[Finding]:
    """One finding: for the core signals if one of them is affected, else for those that only summarise."""
    bad = {c.name: c for c in history.courses.values() if len(c) and not bool(np.isfinite(c.values).all())}
    counted = history.course("logprobs/nonfinite_tokens").finite
    tokens = int(counted.steps[counted.values > 0][0]) if bool((counted.values > 0).any()) else None
    core = [name for name in CORE if name in bad]
    firsts = {name: _first(bad[name]) for name in bad}
    if not core:
        aside = _aside(history, bad, firsts)
        return aside if tokens is None else (_of_tokens(history, tokens), *aside)
    onset = min(firsts[name] for name in core)
    name = next(n for n in core if firsts[n] == onset)
    if tokens is not None and tokens <= onset:
        return (_of_tokens(history, tokens),)
    chosen, rest = _why(history, name, onset)
    count = int(np.sum(~np.isfinite(bad[name].values)))
    value = float(bad[name].values[~np.isfinite(bad[name].values)][0])
    others = [n for n in core if n != name and firsts[n] == onset]
    also = f", with {', '.join(others)}" if others else ""
    return (
        Finding(
            NAME,
            SYMPTOM,
            chosen.cause,
            Severity.CRITICAL if _goes_on(bad[name]) or count > 1 else Severity.WARN,
            0.7 if chosen.cause != "update_nonfinite" else 0.4,
            f"{name} is {value} at step {onset}{also}: {chosen.reason}.",
            onset,
            None if _goes_on(bad[name]) else int(bad[name].steps[~np.isfinite(bad[name].values)][-1]),
            tuple(_seen(bad[n], firsts[n]) for n in (name, *others)),
            rest,
        ),
    )


def _first(c: Course) -> int:
    return int(c.steps[~np.isfinite(c.values)][0])


def _goes_on(c: Course) -> bool:
    return not bool(np.isfinite(c.values[-1]))


def _seen(c: Course, step: int) -> Observation:
    value = c.at(step)
    return Observation(c.name, step, float("nan") if value is None else value, "the first value that is not finite")


def _why(history: History, name: str, onset: int) -> tuple[Candidate, tuple[Candidate, ...]]:
    scene = scene_of(history, onset)
    overflow = _overflow(history, onset)
    if name == "reward/mean":
        return choose(scene, SYMPTOM, (), supported("grader_failing", "the reward itself is not finite"))
    if name.startswith("logprobs/"):
        text = "log-probs of sampler or trainer are not finite before any update uses them"
        return choose(scene, SYMPTOM, ("weights_corrupted_in_sync",), supported("numerics_differ", text))
    default = supported("update_nonfinite", overflow or "nothing in the log announced it")
    return choose(scene, SYMPTOM, ("tiny_std_division", "learning_rate_too_high", "weights_corrupted_in_sync"), default)


def _overflow(history: History, onset: int) -> str:
    for name in EXTREMES:
        c = history.course(name)
        before = c.values[c.steps <= onset][-3:]
        log_ratio = before if name.endswith("mismatch_max") else np.log(np.maximum(before, 1e-300))
        if len(before) and bool(np.nanmax(log_ratio) > 20.0):
            return f"{name} was {np.nanmax(before):.3g} just before: the ratio overflows"
    return ""


def _of_tokens(history: History, step: int) -> Finding:
    c = compact(history.course("logprobs/nonfinite_tokens"))
    count = float(c.values.max())
    text = "sampled tokens have no finite log-prob: one side gives them probability 0"
    chosen, rest = choose(scene_of(history, step), SYMPTOM, ("weights_corrupted_in_sync",),
                          supported("support_not_matched", text))  # fmt: skip
    return Finding(
        NAME, SYMPTOM, chosen.cause, Severity.WARN, 0.6, f"Up to {count:.0f} tokens of a step: {chosen.reason}.", step,
        None, (Observation(c.name, step, count, "compared tokens whose log-prob is not finite"),), rest,
    )  # fmt: skip


def _aside(history: History, bad: dict[str, Course], firsts: dict[str, int]) -> Sequence[Finding]:
    """Only summaries are affected: some frameworks write NaN for the mean of nothing."""
    overflowed = [n for n in EXTREMES if n in bad]
    names = overflowed or sorted(bad)
    if not names:
        return ()
    name = min(names, key=lambda n: firsts[n])
    text = "a single ratio overflowed" if overflowed else "no value of the update is affected; often a mean of nothing"
    chosen, rest = choose(scene_of(history, firsts[name]), SYMPTOM, (), supported("update_nonfinite", text))
    return (
        Finding(
            NAME, SYMPTOM, chosen.cause, Severity.WARN if overflowed else Severity.INFO, 0.3,
            f"{name} is not finite at step {firsts[name]}: {text}.", firsts[name],
            None if _goes_on(bad[name]) else int(bad[name].steps[~np.isfinite(bad[name].values)][-1]),
            (_seen(bad[name], firsts[name]),), rest,
        ),
    )  # fmt: skip


DETECTOR = Detector(
    name=NAME,
    symptom=SYMPTOM,
    title="A value is not finite",
    pattern="Any NaN or infinity. The first signal in the order of a step (log-probs, reward, ratio, divergence, "
    "entropy, advantage, loss, gradient) names the place; what preceded it names the cause. Summaries alone inform.",
    needs=((*CORE, *EXTREMES, "logprobs/nonfinite_tokens"),),
    judge=judge,
    sharpened_by=("policy/ratio_max", "policy/advantage_abs_max", "policy/anchor_kl", "policy/learning_rate"),
    yields_to=("learning_rate", "mismatch", "ratio_tail", "kl_high", "constant_policy"),
)

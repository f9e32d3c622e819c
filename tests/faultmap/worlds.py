"""Made-up runs with the noise real ones have: groups are drawn task by task, so that reward, its spread and the share
of constant groups belong together. A fault changes what a step is made of, from an onset on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from series import history

from posttrain.faultmap.history import Facts, History
from posttrain.signals.framework import Framework

Array = npt.NDArray[np.float64]

TRL_KEYS = (
    "policy/loss", "policy/grad_norm", "policy/learning_rate", "rollout/length_mean", "rollout/length_max",
    "rollout/truncated_share", "reward/mean", "reward/group_std_mean", "reward/zero_variance_groups", "policy/entropy",
    "policy/clip_fraction_high", "policy/clip_fraction_low",
)  # fmt: skip


@dataclass
class Step:
    """What a step is made of, before it is measured."""

    skill: float
    entropy: float
    length: float
    truncated: float
    gradient: float
    gap: float
    kl: float
    clip: float = 0.0
    ess: float = 1.0
    ratio_max: float = 1.0
    staleness: float = 0.0
    direction: float = 0.0
    bias: float = 0.0
    first_token: float = 1.3
    advantage_max: float = 2.5
    success_shift: float = 0.0


Fault = Callable[[Step, int], None]
"""Changes a step in place; the number counts the steps since the onset, from 0."""


@dataclass
class World:
    """A run. ``skill`` is the logit of the success on a task of mean difficulty."""

    steps: int = 80
    prompts: int = 16
    group: int = 8
    first_skill: float = -2.0
    last_skill: float = 2.5
    learnt_at: float = 0.35
    spread: float = 1.5
    first_entropy: float = 0.6
    entropy_kept: float = 0.25
    length: float = 60.0
    length_change: float = 0.8
    cap: int = 256
    truncated: float = 0.05
    rounding: float = 0.01
    rate: float = 1e-5
    worst: float = 0.0
    top: float = 1.0
    updates: int = 1
    facts: Facts = field(default_factory=Facts)
    fault: Fault | None = None
    onset: int = 20
    seed: int = 0
    keys: tuple[str, ...] | None = None
    every: int = 1

    def run(self) -> History:
        """The log of it."""
        rng = np.random.default_rng(self.seed)
        rows = [self._measure(rng, self._step(t), t) for t in range(self.steps)]
        names = sorted({name for row in rows for name in row})
        table = {n: np.array([row.get(n, np.nan) for row in rows]) for n in names}
        if self.keys is not None:
            table = {n: v for n, v in table.items() if n in self.keys}
        if self.every > 1:
            table = {n: _averaged(v, self.every) for n, v in table.items()}
        facts = replace(self.facts, group_size=self.group)
        framework = Framework.POSTTRAIN if self.keys is None else Framework.TRL
        return history(table, first=self.every, every=self.every, facts=facts, framework=framework)

    def _step(self, t: int) -> Step:
        x = t / max(self.steps - 1, 1)
        learnt = 1.0 / (1.0 + np.exp(-10.0 * (x - self.learnt_at)))
        entropy = self.first_entropy * (1.0 - (1.0 - self.entropy_kept) * learnt)
        length = self.length * (1.0 - (1.0 - self.length_change) * learnt)
        step = Step(
            skill=self.first_skill + (self.last_skill - self.first_skill) * learnt, entropy=entropy, length=length,
            truncated=self.truncated * (1.0 - 0.9 * learnt), gradient=0.5, kl=0.002 + 0.15 * learnt,
            gap=self.rounding * float(np.sqrt(entropy)),
        )  # fmt: skip
        if self.updates > 1:
            step.clip, step.ess, step.ratio_max = 0.02, 0.97, 2.0
        if self.fault is not None and t >= self.onset:
            self.fault(step, t - self.onset)
        return step

    def _measure(self, rng: np.random.Generator, s: Step, t: int) -> dict[str, float]:
        task = rng.normal(s.skill, self.spread, self.prompts)
        chance = np.clip(1.0 / (1.0 + np.exp(-task)) + s.success_shift, 0.0, 1.0)
        wins = rng.random((self.prompts, self.group)) < chance[:, None]
        rewards = self.worst + (self.top - self.worst) * wins
        constant = wins.all(1) | ~wins.any(1)
        signal = 1.0 - constant.mean()
        tokens = wins.size * s.length

        def about(value: float, spread: float) -> float:
            return float(value * np.exp(rng.normal(0.0, spread)))

        entropy = about(s.entropy, 0.08)
        gap = about(s.gap, 0.12)
        surprise = rng.normal(0.0, 1.2 * np.sqrt(s.entropy / tokens + 1e-12))
        length = about(s.length, 0.05)
        cut = float(rng.binomial(wins.size, min(max(s.truncated, 0.0), 1.0)) / wins.size)
        length = (1 - cut) * length + cut * self.cap
        row = {
            "reward/mean": rewards.mean(), "reward/std": rewards.std(), "reward/min": rewards.min(),
            "reward/max": rewards.max(), "reward/success": wins.mean(), "reward/group_std_mean": rewards.std(1).mean(),
            "reward/zero_variance_groups": constant.mean(), "reward/all_success_groups": wins.all(1).mean(),
            "reward/all_fail_groups": (~wins.any(1)).mean(), "reward/ungradable_share": 0.0,
            "policy/loss": rng.normal(0.0, 1e-3), "policy/entropy": entropy,
            "policy/sampled_entropy": entropy + surprise + s.direction * gap,
            "policy/grad_norm": about(s.gradient, 0.3) * np.sqrt(signal), "policy/learning_rate": self.rate,
            "policy/clip_fraction_high": about(s.clip, 0.2), "policy/clip_fraction_low": about(0.5 * s.clip, 0.2),
            "policy/ratio_ess": min(about(s.ess, 0.15 * (1.0 - s.ess)), 1.0),
            "policy/ratio_max": max(about(s.ratio_max, 0.3), 1.0) if s.ratio_max > 1.0 else 1.0,
            "policy/ratio_min": 1.0 / max(s.ratio_max, 1.0), "policy/approx_kl": 0.5 * (1.0 - s.ess) ** 2,
            "policy/anchor_kl": about(s.kl, 0.15), "policy/updates": float(self.updates),
            "policy/advantage_abs_max": about(s.advantage_max, 0.05),
            "logprobs/mismatch_mean": gap, "logprobs/mismatch_max": about(20 * s.gap, 0.3),
            "logprobs/mismatch_k3": 1.2 * gap**2,
            "logprobs/mismatch_bias": s.bias * gap - gap**2 + rng.normal(0, 0.03) * gap,
            "logprobs/first_token_mismatch_mean": about(s.first_token * gap, 0.25),
            "logprobs/ratio_max": float(np.exp(about(15 * s.gap, 0.3))) if s.bias > -0.8 else 1.0,
            "logprobs/ratio_ess": max(1.0 - 3 * gap**2, 0.01), "logprobs/nonfinite_tokens": 0.0,
            "rollout/length_mean": length,
            "rollout/length_max": float(self.cap) if cut else min(2.5 * length, self.cap),
            "rollout/truncated_share": cut, "schedule/staleness_mean": s.staleness,
        }  # fmt: skip
        return {name: float(value) for name, value in row.items()}


def _averaged(values: Array, every: int) -> Array:
    whole = len(values) - len(values) % every
    return values[:whole].reshape(-1, every).mean(1)


def random_world(seed: int) -> World:
    """A healthy run: any size, task, length, scale of reward, number format and key set."""
    rng = np.random.default_rng(10_000 + seed)
    steps = int(rng.choice([10, 25, 60, 120, 300]))
    worst, top = [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)][int(rng.integers(3))]
    sparse = bool(rng.random() < 0.5)
    first, gain = float(rng.uniform(-3.5, 3.0)), float(rng.uniform(1.5, 5.0))
    return World(
        steps=steps, prompts=int(rng.choice([4, 8, 32])), group=int(rng.choice([4, 8, 16])), first_skill=first,
        last_skill=first + gain, learnt_at=float(rng.uniform(0.1, 0.6)),
        spread=float(rng.uniform(0.5, 3.0)), first_entropy=float(np.exp(rng.uniform(np.log(0.1), np.log(2.5)))),
        entropy_kept=float(rng.choice([0.05 if gain > 3.0 else 0.3, 0.3, 0.7, 1.5])),
        length=float(np.exp(rng.uniform(1.0, 6.5))),
        length_change=float(rng.choice([0.6, 1.0, 1.4, 2.5])), cap=1500, truncated=float(rng.choice([0.0, 0.1, 0.6])),
        rounding=float(rng.choice([1e-7, 0.003, 0.03])), worst=worst, top=top,
        updates=int(rng.choice([1, 1, 4])), seed=seed, keys=TRL_KEYS if sparse else None,
        every=int(rng.choice([1, 5])) if sparse and steps >= 60 else 1,
        facts=Facts(max_new_tokens=1500, asynchronous=False if rng.random() < 0.5 else None),
    )  # fmt: skip


def stepwise(run: History, every: int = 1) -> list[History]:
    """The run as it was known at each step."""
    return [run.until(int(step)) for step in run.steps[::every]]


def only(run: History, *left_out: str) -> History:
    """The run without some signals."""
    kept: Mapping[str, Array] = {n: c.values for n, c in run.courses.items() if n not in left_out}
    first = int(run.steps[0])
    return history(kept, first=first, every=int(run.steps[1]) - first, facts=run.facts, framework=run.framework)

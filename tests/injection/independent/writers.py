"""The same steps as two frameworks would log them: TRL's ``trainer_state.json`` and verl's JSONL file logger.

Values are only those that such a run could have logged. A value that is not finite stands as TRL writes it (a bare
``NaN`` or ``Infinity``) and as verl writes it (``null`` for NaN).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from tests.injection.independent.tasks import PROMPT_WIDTH
from tests.injection.independent.trainer import Batch, Recipe, Step, Update
from torch import Tensor

LARGEST_WEIGHT = 3.0

Row = dict[str, float]


class TrlLog:
    """Rows of ``log_history``: means over every ``log_every`` steps, as TRL takes them of every key."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._window: list[Row] = []
        self._tokens = 0
        self._step = 0
        self.history: list[dict[str, Any]] = []

    def add(self, step: Step) -> None:
        """One step, and its evaluation if there was one."""
        self._tokens += int(step.batch.replies.mask.sum()) + len(step.batch.replies.ids) * PROMPT_WIDTH
        self._step = step.number
        self._window.append(self._row(step))
        epoch = round(step.number / self._recipe.steps, 6)
        if step.number % self._recipe.log_every == 0:
            means = {key: fmean(row[key] for row in self._window) for key in self._window[0]}
            means |= {"learning_rate": step.conditions.learning_rate, "num_tokens": float(self._tokens)}
            self.history.append({**means, "epoch": epoch, "step": step.number})
            self._window = []
        if step.evaluation is not None:
            row = {**_completions(step.evaluation), **_rewards(step.evaluation, 1, 0.0)}
            self.history.append({f"eval_{k}": v for k, v in row.items()} | {"epoch": epoch, "step": step.number})

    def _row(self, step: Step) -> Row:
        recipe, updates = self._recipe, step.updates
        row = {
            "loss": fmean(u.loss for u in updates),
            "grad_norm": fmean(u.grad_norm for u in updates),
            **_completions(step.batch),
            **_rewards(step.batch, recipe.group, recipe.format_weight),
            "frac_reward_zero_std": step.batch.grades.constant_groups(recipe.group),
            "entropy": fmean(u.entropy for u in updates),
            "step_time": step.seconds,
        }
        if recipe.conditions.beta:
            row["kl"] = fmean(u.kl for u in updates)
        row |= _clips(updates)
        if recipe.logs_sampling:
            row |= _sampling(step.scored - step.sampled)
        return row

    def write(self, directory: Path) -> list[Path]:
        """``trl/trainer_state.json``."""
        path = directory / "trl" / "trainer_state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "epoch": 1.0,
            "global_step": self._step,
            "log_history": self.history,
            "logging_steps": self._recipe.log_every,
            "max_steps": self._recipe.steps,
        }
        path.write_text(json.dumps(state, indent=1) + "\n")
        return [path]


class VerlLog:
    """Lines ``{"step": N, "data": {...}}``, one a step."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._lines: list[str] = []

    def add(self, step: Step) -> None:
        """One step, with its validation in the same line."""
        c, updates, replies = step.conditions, step.updates, step.batch.replies
        reward, lengths = step.batch.grades.reward, replies.lengths.float()
        data: Row = {
            "training/global_step": step.number,
            "actor/entropy": updates[0].entropy,
            "actor/pg_loss": fmean(u.policy_loss for u in updates),
            "actor/pg_clipfrac": fmean(float((u.low + u.high).mean()) for u in updates),
            "actor/ppo_kl": fmean(u.moved for u in updates),
            "actor/grad_norm": fmean(u.grad_norm for u in updates),
            "actor/lr": c.learning_rate,
            **_spread("critic/score", reward),
            **_spread("critic/rewards", reward),
            **_spread("critic/advantages", step.advantages),
            **_spread("response_length", lengths),
            "response_length/clip_ratio": float((lengths == c.completion_cap).float().mean()),
            **_spread("prompt_length", (replies.ids[:, :PROMPT_WIDTH] != 1).sum(1).float()),
            "prompt_length/clip_ratio": 0.0,
            "timing_s/step": step.seconds,
            "perf/total_num_tokens": float(replies.mask.sum()) + len(replies.ids) * PROMPT_WIDTH,
        }
        if self._recipe.conditions.beta:
            data |= {"actor/kl_loss": fmean(u.kl for u in updates), "actor/kl_coef": c.beta}
        if self._recipe.logs_sampling:
            data |= _rollout_correction(step.sampled, step.scored)
        if step.evaluation is not None:
            data[f"val-core/{self._recipe.task}/reward/mean@1"] = float(step.evaluation.grades.reward.mean())
        finite = {key: None if math.isnan(value) else value for key, value in data.items()}
        self._lines.append(json.dumps({"step": step.number, "data": finite}))

    def write(self, directory: Path) -> list[Path]:
        """``verl/run.jsonl``."""
        path = directory / "verl" / "run.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._lines) + "\n")
        return [path]


def _completions(batch: Batch) -> Row:
    lengths, ended = batch.replies.lengths.float(), batch.replies.ended
    terminated = lengths[ended] if bool(ended.any()) else torch.zeros(1)
    row = {}
    for name, values in (("length", lengths), ("terminated_length", terminated)):
        row |= {
            f"completions/mean_{name}": float(values.mean()),
            f"completions/min_{name}": float(values.min()),
            f"completions/max_{name}": float(values.max()),
        }
    return row | {"completions/clipped_ratio": float((~ended).float().mean())}


def _rewards(batch: Batch, group: int, format_weight: float) -> Row:
    grades = batch.grades
    parts = {"answer_reward": grades.answer} | ({"format_reward": grades.format} if format_weight else {})
    row = {}
    for name, values in parts.items():
        row |= {f"rewards/{name}/mean": float(values.mean()), f"rewards/{name}/std": stdev(values.tolist())}
    # The deviation is of the whole batch, not of groups.
    return row | {"reward": float(grades.reward.mean()), "reward_std": stdev(grades.reward.tolist())}


def _clips(updates: Sequence[Update]) -> Row:
    return {
        "clip_ratio/low_mean": fmean(float(u.low.mean()) for u in updates),
        "clip_ratio/low_min": fmean(float(u.low.min()) for u in updates),
        "clip_ratio/high_mean": fmean(float(u.high.mean()) for u in updates),
        "clip_ratio/high_max": fmean(float(u.high.max()) for u in updates),
        "clip_ratio/region_mean": fmean(float((u.low + u.high).mean()) for u in updates),
    }


def _sampling(gap: Tensor) -> Row:
    """Of the trainer's minus the sampler's log-probs. The weights are truncated, as TRL logs them."""
    weights = gap.clamp(-20, 20).exp().clamp(max=LARGEST_WEIGHT)
    return {
        "sampling/sampling_logp_difference/mean": float(gap.abs().mean()),
        "sampling/sampling_logp_difference/max": float(gap.abs().max()),
        "sampling/importance_sampling_ratio/min": float(weights.min()),
        "sampling/importance_sampling_ratio/mean": float(weights.mean()),
        "sampling/importance_sampling_ratio/max": float(weights.max()),
    }


def _rollout_correction(sampled: Tensor, scored: Tensor) -> Row:
    """verl's comparison of the two policies; the weights are diagnostics, not clamped below 2e8."""
    difference = (scored.exp() - sampled.exp()).abs()
    gap = (scored - sampled).clamp(-20, 20)
    return {
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_std": float(difference.std(correction=0)),
        "rollout_corr/kl": float(-gap.mean()),
        "rollout_corr/k3_kl": float((gap.exp() - gap - 1).mean()),
        "rollout_corr/log_ppl_diff": float(-gap.mean()),
        "rollout_corr/chi2_token": float((2 * gap).exp().mean() - 1),
    }


def _spread(name: str, values: Tensor) -> Row:
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }

"""From a table of a log's keys to courses of signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Course, Unmapped
from posttrain.faultmap.readers.console import PROGRESS
from posttrain.faultmap.readers.remarks import Remarks, listed, quoted
from posttrain.faultmap.readers.table import Column, Table
from posttrain.faultmap.readers.timeline import STEP_KEYS, Timeline, keep_latest
from posttrain.signals.aliases import ALIASES, NAMES, find_alias
from posttrain.signals.framework import Alias, Framework
from posttrain.signals.registry import find_signal

_MARKS: Mapping[Framework, tuple[str, ...]] = {
    Framework.TRL: (
        "completions/",
        "completion_length",
        "frac_reward_zero_std",
        "reward_std",
        "rewards/",
        "clip_ratio/",
        "sampling/sampling_logp_difference/",
        "objective/rlhf_reward",
        "policy/approxkl_avg",
    ),
    Framework.VERL: (
        "actor/",
        "critic/",
        "response_length/",
        "prompt_length/",
        "timing_s/",
        "timing/",
        "val-core/",
        "rollout_corr/",
        "global_seqlen/",
    ),
    Framework.PRIME_RL: (
        "mismatch_kl/",
        "optim/",
        "train/agg/",
        "off_policy/",
        "is_masked",
        "masked_mismatch_kl/",
        "completion_len/",
        "seq_len/",
        "progress/",
    ),
    Framework.OPENRLHF: (
        "ppo_clip_ratio",
        "actor_lr",
        "actor_grad_norm",
        "critic_lr",
        "response_clip_ratio",
        "vllm_kl",
        "group_reward_std",
        "dynamic_filtering_pass_rate",
        "rollout/reward_mean",
    ),
    Framework.SLIME: (
        "rollout/raw_reward",
        "rollout/response_len/",
        "rollout/response_lengths",
        "rollout/truncated_ratio",
        "rollout/zero_std/",
        "rollout/log_probs",
        "train/pg_clipfrac",
        "train/pg_loss",
        "train/ppo_kl",
        "train/train_rollout_logprob_abs_diff",
        "perf/actor_train",
    ),
    Framework.NEMO_RL: (
        "token_mult_prob_error",
        "gen_kl_error",
        "probs_ratio",
        "mean_gen_tokens_per_sample",
        "sampling_importance_ratio",
        "timing/train/",
        "performance/",
        "global_valid_toks",
    ),
    Framework.AREAL: ("ppo_actor/", "grpo_actor/", "ppo_critic/", "timeperf/"),
}
"""Beginnings of keys that only one framework writes (``train/`` before them left out where trackers add it)."""

_FEWEST_OWN = 15
"""A run of posttrain never logs fewer signals."""

_COUNTERS = frozenset(
    (
        *STEP_KEYS,
        "_runtime",
        "_timestamp",
        "wall_time",
        "time",
        "timestamp",
        "total_flos",
        "policy_version",
        "attempt",
        PROGRESS,
    )
)


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a table says in the registry's terms."""

    courses: Mapping[str, Course]
    unmapped: tuple[Unmapped, ...]


def detect_framework(table: Table) -> Framework:
    """Whose keys these are; ``plain`` where none has clearly most."""
    scores = {framework: _score(table, marks) for framework, marks in _MARKS.items()}
    own = sum(find_signal(key) is not None for key in table.columns)
    # A few columns with our names are a table that somebody made for us.
    scores[Framework.POSTTRAIN] = own if own >= _FEWEST_OWN or "policy_version" in table.columns else 0
    best = max(scores, key=lambda framework: scores[framework])
    clear = scores[best] > 0 and sum(score == scores[best] for score in scores.values()) == 1
    return best if clear else Framework.PLAIN


def _score(table: Table, marks: tuple[str, ...]) -> int:
    return sum(key.startswith(marks) or key.removeprefix("train/").startswith(marks) for key in table.columns)


@dataclass(frozen=True, slots=True)
class _Key:
    """A key that stands for a signal. Of several, the one with the lowest ``rank`` counts."""

    name: str
    alias: Alias
    rank: int


def map_table(table: Table, framework: Framework, time: Timeline, remarks: Remarks, *, null_is_nan: bool) -> Mapped:
    """Turn the columns of a table into courses.

    Of several keys for one signal, the one listed first in the framework's aliases counts; another one fills in
    where no step has both (a key that was renamed). ``null_is_nan``: a ``null`` stands for a value that was not
    finite, instead of for no value.
    """
    candidates, unmapped = _candidates(table, framework, time)
    courses = _Courses(time, null_is_nan)
    used: list[tuple[str, _Key]] = []
    passed_over: list[str] = []
    for signal, keys in candidates.items():
        for key in sorted(keys, key=lambda one: one.rank):
            if courses.add(signal, table.columns[key.name], key.alias.scale):
                used.append((signal, key))
            else:
                passed_over.append(key.name)
    _report_order(courses, remarks)
    _report_keys(table, framework, used, passed_over, remarks)
    return Mapped(courses.found, unmapped)


def _candidates(
    table: Table, framework: Framework, time: Timeline
) -> tuple[dict[str, list[_Key]], tuple[Unmapped, ...]]:
    ranks = {alias: rank for rank, alias in enumerate(ALIASES[framework])}
    candidates: dict[str, list[_Key]] = {}
    unmapped: list[Unmapped] = []
    for name, column in table.columns.items():
        if name == time.key:
            continue
        found = find_alias(framework, name)
        if found is not None:
            signal, alias = found
            # A key without a single number says less than any other.
            penalty = 0 if np.isfinite(column.values).any() else len(ranks) + 1
            own = -1 if alias.key == signal else len(ranks)
            candidates.setdefault(signal, []).append(_Key(name, alias, ranks.get(alias, own) + penalty))
        elif name not in _COUNTERS:
            unmapped.append(Unmapped(name, len(column.rows)))
    return candidates, tuple(sorted(unmapped, key=lambda one: one.key))


class _Courses:
    """Builds courses, and counts what was logged twice or out of order."""

    def __init__(self, time: Timeline, null_is_nan: bool) -> None:
        self._time, self._null_is_nan = time, null_is_nan
        self.found: dict[str, Course] = {}
        self.replaced, self.disordered = 0, False

    def add(self, signal: str, column: Column, scale: float) -> bool:
        """Add one key's values to a course; false if they add nothing, or another key has some of their steps."""
        rows, values = column.rows, column.values
        if not self._null_is_nan and column.nulls.any():
            rows, values = rows[~column.nulls], values[~column.nulls]
        steps = self._time.steps[rows]
        kept = keep_latest(steps)
        steps, values = steps[kept.order], values[kept.order] * scale
        before = self.found.get(signal)
        if before is not None:
            if np.isin(steps, before.steps).any():
                return False
            steps, values = np.append(before.steps, steps), np.append(before.values, values)
            order = np.argsort(steps)
            steps, values = steps[order], values[order]
        if not len(steps):
            return False
        if signal != "run/epoch":
            self.replaced = max(self.replaced, kept.replaced)
            self.disordered = self.disordered or kept.disordered
        self.found[signal] = Course(signal, steps, values)
        return True


def _report_order(courses: _Courses, remarks: Remarks) -> None:
    if courses.replaced:
        remarks.note(
            f"{courses.replaced} steps were logged again (a resumed run, or several rows a step): later values count."
        )
    if courses.disordered:
        remarks.note("Steps were not in order; they were sorted.")


def _report_keys(
    table: Table, framework: Framework, used: list[tuple[str, _Key]], passed_over: list[str], remarks: Remarks
) -> None:
    worded = sorted({key.name for _, key in used} & table.worded)
    if worded:
        remarks.note(f"Numbers written as text were read as numbers: {listed(worded)}.")
    if passed_over:
        remarks.note(f"Not used, because a better key says the same: {listed(sorted(passed_over), 8)}.")
    if table.full:
        remarks.problem(f"The log was not read to its end: {table.full}.")
    if framework is Framework.PLAIN:
        guessed = sorted(key.name for _, key in used if key.alias.caveat)
        if guessed:
            remarks.note(f"No framework was recognised: columns were taken by their names ({listed(guessed, 12)}).")
        return
    for signal, key in sorted(used, key=lambda one: one[0]):
        if key.alias.caveat:
            remarks.note(f"{quoted(key.name)} of {NAMES[framework]} is read as {quoted(signal)}. {key.alias.caveat}")

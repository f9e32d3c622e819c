"""What training changed: the paired gain, where it comes from, and whether it sharpened or extended the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise, permutations
from typing import Any

import numpy as np

from posttrain.errors import InputError
from posttrain.orchestration.evaluation import CostPoint, EvaluationSet, Sample, TaskResult, is_parsable
from posttrain.orchestration.statistics import Estimate, bootstrap_mean

BIN_EDGES = (0.05, 0.5, 0.95)
"""Edges of base pass@k that separate tasks it solves (almost) never, rarely, mostly and (almost) always."""
EXTENDED_FROM = 0.5
SHARPENED_TO = 0.2
"""Share of the gain on never-solved tasks from which training *extended*, and up to which it *sharpened*."""

Pair = tuple[TaskResult, TaskResult]
"""The same task before and after training."""


FEWEST_CLUSTERS = 5
"""Below it a bootstrap over clusters has too few distinct resamples for an interval to mean anything."""


class VerdictKind(StrEnum):
    """What the gain says about training."""

    SHARPENED = "sharpened"
    EXTENDED = "extended"
    BOTH = "both"
    NO_CHANGE = "no_change"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class GainBin:
    """Tasks whose base pass@k lies in [low, high); the last bin includes its end.

    ``gain_share`` is this bin's part of the whole gain in pass@1 (it can be negative, the bins sum to 1).
    """

    low: float
    high: float
    tasks: int
    base_success: float
    trained_success: float
    gain_share: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Sharpened or extended, in one sentence, with the bins of base pass@``k`` it rests on."""

    kind: VerdictKind
    sentence: str
    k: int
    bins: tuple[GainBin, ...]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The gain in success split into three parts that add up to it.

    success = sum over {finished, cut off} of share x parsable share x correct share, and the parts are
    Shapley values of changing these three factors from base to trained: the average, over all six orders of
    changing them one after another, of what each change adds. ``format_known`` is false where the
    environment does not tell what was parsable; ``format`` is 0 then.
    """

    format: float
    correctness: float
    termination: float
    total: float
    format_known: bool


@dataclass(frozen=True, slots=True)
class CostComparison:
    """One attempt of the trained model against several of the base model, by generated tokens.

    ``base_attempts_to_match`` (and its tokens) is where the base model's pass@k reaches the trained
    model's pass@1, between measured points on straight lines; ``None`` if no measured k reaches it. pass@k
    assumes that somebody picks the right attempt out of k.
    """

    trained_tokens: float
    trained_success: float
    base_attempts_to_match: float | None
    base_tokens_to_match: float | None
    largest_base_k: int
    largest_base_success: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Gain:
    """Paired differences, trained minus base, over the tasks judged both times; keys such as ``pass@1``."""

    environment: str
    tasks: int
    differences: Mapping[str, Estimate]
    verdict: Verdict
    decomposition: Decomposition
    constant_answer_success: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form, fields under their own names."""
        return asdict(self)


def measure_gain(
    base: EvaluationSet,
    trained: EvaluationSet,
    ks: Sequence[int],
    *,
    seed: int = 0,
    constant_answer_success: float | None = None,
) -> Gain:
    """Compare two evaluations of the same tasks, task by task.

    ``constant_answer_success`` is what always giving one answer earns (0 to 1): the floor to read the rest
    against. Raises InputError if no task is judged in both.
    """
    pairs = pair_tasks(base, trained)
    return Gain(
        environment=base.environment,
        tasks=len(pairs),
        differences=_differences(pairs, ks, seed),
        verdict=sharpened_or_extended(pairs, seed=seed),
        decomposition=decompose(pairs),
        constant_answer_success=constant_answer_success,
    )


def paired_tasks(base: EvaluationSet, trained: EvaluationSet) -> list[Pair]:
    """Tasks with a gradable attempt in both evaluations, in the base's order; there may be none."""
    after = {t.task_id: t for t in trained.judged}
    return [(t, after[t.task_id]) for t in base.judged if t.task_id in after]


def pair_tasks(base: EvaluationSet, trained: EvaluationSet) -> list[Pair]:
    """The same, with an InputError if there is none."""
    pairs = paired_tasks(base, trained)
    if not pairs:
        raise InputError(
            f"environments.{base.environment}",
            f"{len(base.judged)} and {len(trained.judged)} tasks judged",
            "no task has a graded attempt before and after training",
            "Evaluate the same held-out tasks both times, and look at why attempts could not be graded",
        )
    return pairs


def sharpened_or_extended(pairs: Sequence[Pair], *, k: int = 16, seed: int = 0) -> Verdict:
    """Where the gain in pass@1 lies, by how often the base model solved the task within ``k`` attempts.

    ``k`` is lowered to the fewest gradable base attempts of any task. With exactly k attempts a task is
    either solved within them or not, so only the outer bins fill; more base attempts resolve the middle.
    A task never solved in n attempts may still have a small success rate; the sentence says how large.
    """
    k = min(k, *(before.attempts for before, _ in pairs))
    gains = np.array([after.pass_at(1) - before.pass_at(1) for before, after in pairs])
    gain = bootstrap_mean(gains, [before.cluster for before, _ in pairs], seed=seed)
    base_pass = np.array([before.pass_at(k) for before, _ in pairs])
    where = np.digitize(base_pass, BIN_EDGES)
    edges = (0.0, *BIN_EDGES, 1.0)
    bins = tuple(
        _bin(low, high, [p for p, w in zip(pairs, where, strict=True) if w == i], float(gains.sum()))
        for i, (low, high) in enumerate(pairwise(edges))
    )
    clusters = len({before.cluster for before, _ in pairs})
    kind = _kind(gain, bins[0]) if clusters >= FEWEST_CLUSTERS else VerdictKind.NO_CHANGE
    trained_k = min(k, *(after.attempts for _, after in pairs))
    within = (
        float(np.mean([before.pass_at(trained_k) for before, _ in pairs])),
        float(np.mean([after.pass_at(trained_k) for _, after in pairs])),
    )
    never = [before for (before, _), w in zip(pairs, where, strict=True) if w == 0]
    sentence = _sentence(kind, gain, bins[0], len(pairs), k, _hidden_rate(never)) + (
        f" (pass@{trained_k} {within[0]:.2f} before, {within[1]:.2f} after)."
    )
    return Verdict(kind, sentence, k, bins)


def decompose(pairs: Sequence[Pair]) -> Decomposition:
    """Split the gain in success into format, correctness and termination; every task weighs the same."""
    base, trained = _rates([b for b, _ in pairs]), _rates([t for _, t in pairs])
    known = all(s.parsable is not None for pair in pairs for t in pair for s in t.gradable)
    base, trained = _fill(base, trained), _fill(trained, base)
    names = ("termination", "format", "correctness")

    def success(changed: frozenset[str]) -> float:
        share, parsable, correct = (getattr(trained if n in changed else base, n) for n in names)
        return sum(share[c] * parsable[c] * correct[c] for c in (0, 1))

    parts = dict.fromkeys(names, 0.0)
    orders = list(permutations(names))
    for order in orders:
        for position, name in enumerate(order):
            before = frozenset(order[:position])
            parts[name] += (success(before | {name}) - success(before)) / len(orders)
    return Decomposition(
        format=parts["format"],
        correctness=parts["correctness"],
        termination=parts["termination"],
        total=success(frozenset(names)) - success(frozenset()),
        format_known=known,
    )


def compare_cost(base: Sequence[CostPoint], trained: Sequence[CostPoint]) -> CostComparison:
    """How many base attempts, and tokens, equal one attempt of the trained model. Both curves start at k = 1."""
    one, most = trained[0], base[-1]
    target = one.success.value
    reach = [p.success.value for p in base]
    attempts = tokens = None
    if target <= reach[0]:
        attempts, tokens = 1.0, base[0].tokens
    elif target <= reach[-1]:
        last = next(i for i, value in enumerate(reach) if value >= target)
        low, high = base[last - 1], base[last]
        part = (target - low.success.value) / (high.success.value - low.success.value)
        attempts = low.k + part * (high.k - low.k)
        tokens = low.tokens + part * (high.tokens - low.tokens)
    spent = f"One trained attempt solves {target:.0%} of the tasks with {one.tokens:.0f} tokens each"
    if attempts is None or tokens is None:
        sentence = f"{spent}; {most.k} base attempts ({most.tokens:.0f} tokens) reach {most.success.value:.0%}."
    else:
        sentence = f"{spent}; the base model needs {attempts:.1f} attempts ({tokens:.0f} tokens) for as many."
    return CostComparison(one.tokens, target, attempts, tokens, most.k, most.success.value, sentence)


@dataclass(frozen=True, slots=True)
class _Rates:
    """Factors of success, each for finished (0) and cut-off (1) attempts; ``None`` where there are none."""

    termination: tuple[float, float]
    format: tuple[float | None, float | None]
    correctness: tuple[float | None, float | None]


def _rates(tasks: Sequence[TaskResult]) -> _Rates:
    weighted = [(1.0 / (t.attempts * len(tasks)), s) for t in tasks for s in t.gradable]

    def mass(keep: Callable[[Sample], bool]) -> float:
        return sum(weight for weight, sample in weighted if keep(sample))

    shares: list[float] = []
    parsable: list[float | None] = []
    correct: list[float | None] = []
    for cut in (False, True):
        all_ = mass(lambda s, cut=cut: s.truncated is cut)
        read = mass(lambda s, cut=cut: s.truncated is cut and is_parsable(s))
        right = mass(lambda s, cut=cut: s.truncated is cut and s.success)
        shares.append(all_)
        parsable.append(read / all_ if all_ else None)
        correct.append(right / read if read else None)
    return _Rates((shares[0], shares[1]), (parsable[0], parsable[1]), (correct[0], correct[1]))


def _fill(rates: _Rates, other: _Rates) -> _Rates:
    """Where a factor has no attempts behind it, it did not change: take the other policy's."""

    def take(mine: tuple[float | None, float | None], theirs: tuple[float | None, float | None]) -> tuple[float, float]:
        first, second = ((t or 0.0) if m is None else m for m, t in zip(mine, theirs, strict=True))
        return first, second

    return _Rates(rates.termination, take(rates.format, other.format), take(rates.correctness, other.correctness))


def _differences(pairs: Sequence[Pair], ks: Sequence[int], seed: int) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}

    def add(name: str, chosen: Sequence[Pair], value: Callable[[TaskResult], float]) -> None:
        if chosen:
            changes = [value(after) - value(before) for before, after in chosen]
            found[name] = bootstrap_mean(changes, [before.cluster for before, _ in chosen], seed=seed)

    add("reward", pairs, lambda t: t.mean_reward)
    for k in sorted(set(ks)):
        enough = [p for p in pairs if min(t.attempts for t in p) >= k]
        add(f"pass@{k}", enough, lambda t, k=k: t.pass_at(k))
        if any(s.answer is not None for p in enough for t in p for s in t.gradable):
            add(f"majority@{k}", enough, lambda t, k=k: t.majority_at(k))
    greedy = [p for p in pairs if all(t.greedy is not None and t.greedy.reward is not None for t in p)]
    add("greedy", greedy, lambda t: float(t.greedy is not None and t.greedy.success))
    add("length", pairs, lambda t: t.mean_length)
    return found


def _bin(low: float, high: float, pairs: Sequence[Pair], total_gain: float) -> GainBin:
    base = [before.pass_at(1) for before, _ in pairs]
    trained = [after.pass_at(1) for _, after in pairs]
    share = (sum(trained) - sum(base)) / total_gain if total_gain > 0 else None
    return GainBin(low, high, len(pairs), _mean(base), _mean(trained), share)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _kind(gain: Estimate, never: GainBin) -> VerdictKind:
    if gain.high < 0:
        return VerdictKind.WORSE
    if gain.low <= 0 or never.gain_share is None:
        return VerdictKind.NO_CHANGE
    if never.gain_share >= EXTENDED_FROM:
        return VerdictKind.EXTENDED
    return VerdictKind.SHARPENED if never.gain_share <= SHARPENED_TO else VerdictKind.BOTH


def _hidden_rate(never: Sequence[TaskResult]) -> float:
    """Largest success rate that would still show no success in so many attempts one time in twenty."""
    return 1.0 - 0.05 ** (1.0 / min(t.attempts for t in never)) if never else 0.0


def _sentence(kind: VerdictKind, gain: Estimate, never: GainBin, tasks: int, k: int, hidden: float) -> str:
    points = f"{100 * gain.value:.0f} points"
    if kind is VerdictKind.NO_CHANGE:
        return f"No clear change: success moved by {points} (interval {100 * gain.low:.0f} to {100 * gain.high:.0f})"
    if kind is VerdictKind.WORSE:
        return f"Training made the model worse by {abs(100 * gain.value):.0f} points"
    share = never.gain_share or 0.0
    if kind is VerdictKind.SHARPENED:
        return (
            f"Training sharpened the model: {1 - share:.0%} of the gain of {points} is on tasks the untrained model "
            f"could already solve within {k} attempts"
        )
    verb = "extended" if kind is VerdictKind.EXTENDED else "sharpened and extended"
    return (
        f"Training {verb} the model: {share:.0%} of the gain of {points} is on {never.tasks} of {tasks} tasks the "
        f"untrained model did not solve within {k} attempts (a success rate up to {hidden:.0%} per attempt could hide "
        f"there) and now solves {never.trained_success:.0%} of the time"
    )

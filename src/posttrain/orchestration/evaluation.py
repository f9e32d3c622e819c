"""Evaluation on held-out tasks: from trajectories to estimates with intervals.

An attempt without a reward (ungradable, failed, aborted) is in no number but ``ungradable_share``, length and
truncation; it never counts as wrong. A task without any gradable attempt is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.orchestration.statistics import AnswerClass, Estimate, bootstrap_mean, majority_at_k, pass_at_k
from posttrain.trajectory import FinishReason, Task, Trajectory

_TRUNCATED = frozenset({FinishReason.LENGTH, FinishReason.CONTEXT, FinishReason.BUDGET})
_WITHOUT_GRADE = frozenset({FinishReason.ABORTED, FinishReason.FAILED})

Extract = Callable[[Trajectory], str | None]
"""Finds the answer of an attempt in one spelling per value; ``None`` if there is none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt. ``reward`` is ``None`` if it could not be graded; ``tokens`` are those the policy sampled.

    ``parsable`` is ``None`` where the environment does not tell whether it found an answer.
    """

    reward: float | None
    success: bool
    tokens: int
    truncated: bool
    parsable: bool | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All attempts at one task: sampled ones, and the greedy one if there was one.

    ``cluster`` names the tasks that share content with this one; intervals resample clusters.
    """

    task_id: str
    cluster: str
    samples: tuple[Sample, ...]
    greedy: Sample | None = None

    @property
    def gradable(self) -> tuple[Sample, ...]:
        """Attempts with a reward."""
        return tuple(s for s in self.samples if s.reward is not None)

    @property
    def attempts(self) -> int:
        """Number of gradable attempts, n."""
        return len(self.gradable)

    @property
    def successes(self) -> int:
        """Number of successes among them, c."""
        return sum(s.success for s in self.gradable)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the gradable attempts; there must be one."""
        return float(np.mean([s.reward for s in self.samples if s.reward is not None]))

    @property
    def mean_length(self) -> float:
        """Mean sampled tokens of all attempts, gradable or not; there must be one."""
        return float(np.mean([s.tokens for s in self.samples]))

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k of this task; InputError if k exceeds the gradable attempts."""
        return pass_at_k(self.attempts, self.successes, k)

    def majority_at(self, k: int) -> float:
        """Expected success of the majority answer among k attempts; InputError as ``pass_at``."""
        voters = [s for s in self.gradable if s.answer is not None]
        counts = Counter(s.answer for s in voters)
        successes = Counter(s.answer for s in voters if s.success)
        classes = [AnswerClass(count, successes[answer]) for answer, count in counts.items()]
        return majority_at_k(classes, self.attempts - len(voters), k)


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """What one policy did on one environment's held-out tasks."""

    environment: str
    tasks: tuple[TaskResult, ...]

    @property
    def judged(self) -> tuple[TaskResult, ...]:
        """Tasks with at least one gradable attempt."""
        return tuple(t for t in self.tasks if t.attempts)


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Success when ``k`` attempts are spent on a task: ``tokens`` is k times the mean length, per task."""

    k: int
    tokens: float
    success: Estimate

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {"k": self.k, "tokens": self.tokens, "success": self.success.to_json()}


@dataclass(frozen=True, slots=True)
class Summary:
    """Estimates for one policy on one environment; ``None`` where nothing could be graded or nothing applies."""

    environment: str
    tasks: int
    samples: int
    tasks_without_grade: int
    ungradable_share: float
    truncated_share: float
    reward: Estimate | None
    length: Estimate | None
    pass_at: Mapping[int, Estimate]
    majority_at: Mapping[int, Estimate]
    parsable_share: Estimate | None
    correct_given_parsable: float | None
    greedy: Estimate | None
    cost_curve: tuple[CostPoint, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form; every ``k`` is a string key."""
        return {
            "environment": self.environment,
            "tasks": self.tasks,
            "samples": self.samples,
            "tasks_without_grade": self.tasks_without_grade,
            "ungradable_share": self.ungradable_share,
            "truncated_share": self.truncated_share,
            "reward": _json(self.reward),
            "length": _json(self.length),
            "pass_at": {str(k): e.to_json() for k, e in self.pass_at.items()},
            "majority_at": {str(k): e.to_json() for k, e in self.majority_at.items()},
            "parsable_share": _json(self.parsable_share),
            "correct_given_parsable": self.correct_given_parsable,
            "greedy": _json(self.greedy),
            "cost_curve": [point.to_json() for point in self.cost_curve],
        }

    def signals(self) -> dict[str, float]:
        """Values by signal name, for the metrics file."""
        values: dict[str, float] = {
            "tasks": float(self.tasks),
            "ungradable_share": self.ungradable_share,
            "truncated_share": self.truncated_share,
        }
        ranged = {f"pass@{k}": e for k, e in self.pass_at.items()} | {
            f"majority@{k}": e for k, e in self.majority_at.items()
        }
        if self.reward is not None:
            ranged["reward_mean"] = self.reward
        for name, estimate in ranged.items():
            values |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        single = {
            "length_mean": self.length,
            "parsable_share": self.parsable_share,
            "greedy_success": self.greedy,
        }
        values |= {name: estimate.value for name, estimate in single.items() if estimate is not None}
        if self.correct_given_parsable is not None:
            values["correct_given_parsable"] = self.correct_given_parsable
        return {f"evaluation/{self.environment}/{name}": value for name, value in values.items()}


def collect(
    environment: str,
    trajectories: Iterable[Trajectory],
    *,
    success_threshold: float,
    extract: Extract | None = None,
) -> EvaluationSet:
    """Sort evaluation trajectories by task, in order of first appearance.

    A trajectory sampled at temperature 0 is the task's greedy attempt. A reward at or above
    ``success_threshold`` is a success. ``extract`` gives the answers for majority votes.
    """
    sampled: dict[str, list[Sample]] = {}
    greedy: dict[str, Sample] = {}
    tasks: dict[str, Task] = {}
    for trajectory in trajectories:
        task_id = trajectory.task.task_id
        tasks.setdefault(task_id, trajectory.task)
        sampled.setdefault(task_id, [])
        sample = _sample(trajectory, success_threshold, extract)
        if trajectory.sampling.temperature == 0.0:
            greedy[task_id] = sample
        else:
            sampled[task_id].append(sample)
    return EvaluationSet(
        environment,
        tuple(
            TaskResult(task_id, cluster_of(tasks[task_id]), tuple(samples), greedy.get(task_id))
            for task_id, samples in sampled.items()
        ),
    )


def cluster_of(task: Task) -> str:
    """Tasks of one cluster share their content: ``metadata["cluster"]`` if the environment says so, else the id."""
    return str(task.metadata.get("cluster", task.task_id))


def summarize(results: EvaluationSet, ks: Sequence[int], *, seed: int = 0) -> Summary:
    """All estimates of one evaluation. A k for which no task has enough gradable attempts is left out."""
    judged = results.judged
    samples = [s for t in results.tasks for s in t.samples]
    with_greedy = [t for t in results.tasks if t.greedy is not None and t.greedy.reward is not None]
    can_vote = any(s.answer is not None for s in samples)
    parsable = [t for t in judged if all(s.parsable is not None for s in t.gradable)]
    return Summary(
        environment=results.environment,
        tasks=len(results.tasks),
        samples=len(samples),
        tasks_without_grade=len(results.tasks) - len(judged),
        ungradable_share=_share(sum(s.reward is None for s in samples), len(samples)),
        truncated_share=_share(sum(s.truncated for s in samples), len(samples)),
        reward=_mean_over(judged, lambda t: t.mean_reward, seed),
        length=_mean_over([t for t in results.tasks if t.samples], lambda t: t.mean_length, seed),
        pass_at=_at_each_k(judged, ks, TaskResult.pass_at, seed),
        majority_at=_at_each_k(judged, ks, TaskResult.majority_at, seed) if can_vote else {},
        parsable_share=_mean_over(parsable, lambda t: float(np.mean([is_parsable(s) for s in t.gradable])), seed),
        correct_given_parsable=_correct_given_parsable(parsable),
        greedy=_mean_over(with_greedy, lambda t: float(t.greedy is not None and t.greedy.success), seed),
        cost_curve=_cost_curve(judged, seed),
    )


def is_parsable(sample: Sample) -> bool:
    """True if an answer was found. A success has one, and so has every attempt where nobody could tell."""
    return sample.success or sample.parsable is not False


def _sample(trajectory: Trajectory, success_threshold: float, extract: Extract | None) -> Sample:
    gradable = trajectory.is_gradable and trajectory.finish_reason not in _WITHOUT_GRADE
    reward = trajectory.reward if gradable else None
    parsable = trajectory.grade.parts.get("parsable") if trajectory.grade is not None else None
    return Sample(
        reward=reward,
        success=reward is not None and reward >= success_threshold,
        tokens=trajectory.num_model_tokens,
        truncated=trajectory.finish_reason in _TRUNCATED,
        parsable=None if parsable is None else parsable > 0.0,
        answer=extract(trajectory) if extract is not None and gradable else None,
    )


def _mean_over(tasks: Sequence[TaskResult], value: Callable[[TaskResult], float], seed: int) -> Estimate | None:
    if not tasks:
        return None
    return bootstrap_mean([value(t) for t in tasks], [t.cluster for t in tasks], seed=seed)


def _at_each_k(
    judged: Sequence[TaskResult], ks: Sequence[int], value: Callable[[TaskResult, int], float], seed: int
) -> dict[int, Estimate]:
    estimates: dict[int, Estimate] = {}
    for k in sorted(set(ks)):
        enough = [t for t in judged if t.attempts >= k]
        if enough:
            values = [value(t, k) for t in enough]
            estimates[k] = bootstrap_mean(values, [t.cluster for t in enough], seed=seed)
    return estimates


def _cost_curve(judged: Sequence[TaskResult], seed: int) -> tuple[CostPoint, ...]:
    """Points at k = 1, 2, 4... and the largest k that nine tasks in ten can give, all over the same tasks."""
    if not judged:
        return ()
    largest = int(np.quantile([t.attempts for t in judged], 0.1, method="lower"))
    tasks = [t for t in judged if t.attempts >= largest]
    length = float(np.mean([t.mean_length for t in tasks]))
    ks = sorted({2**i for i in range(largest.bit_length())} | {largest})
    return tuple(CostPoint(k, k * length, e) for k, e in _at_each_k(tasks, ks, TaskResult.pass_at, seed).items())


def _correct_given_parsable(tasks: Sequence[TaskResult]) -> float | None:
    """Share of successes among parsable attempts, every task weighing the same."""
    weights = [(is_parsable(s) / t.attempts, s.success / t.attempts) for t in tasks for s in t.gradable]
    parsable, correct = sum(w[0] for w in weights), sum(w[1] for w in weights)
    return correct / parsable if parsable else None


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0


def _json(estimate: Estimate | None) -> dict[str, float | int] | None:
    return None if estimate is None else estimate.to_json()

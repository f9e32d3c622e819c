"""Which trajectories a report shows, and what it keeps of those it only counts.

Files are read one after the other, so that a long run does not have to fit into memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from posttrain.rundir.trajectories import StoredTrajectory
from posttrain.trajectory import FinishReason, Trajectory

BINS = ("0", "0–25", "25–50", "50–75", "75–100", "100")
"""Success rates of a group in per cent; the outer two hold exactly none and exactly all."""

TRUNCATED = (FinishReason.LENGTH, FinishReason.CONTEXT, FinishReason.BUDGET)
PER_STEP = 2
PER_TAG = 36
Kind = Literal["best", "worst", "truncated", "ungradable"]
LIMITS: Mapping[Kind, int] = {"best": PER_STEP, "worst": PER_STEP, "truncated": PER_STEP, "ungradable": 4 * PER_STEP}
"""How many of each kind a report takes from one step."""


@dataclass(slots=True)
class Sample:
    """One trajectory that the report shows, and why. ``members`` are (index, reward or status) of its group."""

    stored: StoredTrajectory
    step: int
    kind: str
    tags: list[str] = field(default_factory=list)
    members: list[tuple[str, str]] = field(default_factory=list)

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory itself."""
        return self.stored.trajectory


@dataclass(frozen=True, slots=True)
class StepGroups:
    """Groups of one step by success rate: how many, and how much |advantage| x tokens they carry."""

    step: int
    trajectories: int
    groups: tuple[float, ...]
    advantage: tuple[float, ...]


def bin_of(successes: int, members: int) -> int:
    """Index into BINS of a success rate; the outer bins hold exactly 0 and exactly 1."""
    if successes <= 0 or successes >= members:
        return 0 if successes <= 0 else len(BINS) - 1
    return min(4, 1 + (4 * successes) // members)


def groups_of(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories by group id."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def count_groups(step: int, trajectories: Sequence[Trajectory], thresholds: Mapping[str, float]) -> StepGroups:
    """Count the groups of a step with at least two gradable members by success rate.

    ``thresholds`` gives the reward that counts as a success by environment (1.0 where it is missing).
    """
    counts, mass = [0.0] * len(BINS), [0.0] * len(BINS)
    for members in groups_of(trajectories).values():
        gradable = [t for t in members if t.is_gradable]
        if len(gradable) < 2:
            continue
        index = bin_of(sum(is_success(t, thresholds) for t in gradable), len(gradable))
        counts[index] += 1
        mass[index] += sum(_advantage_mass(t) for t in gradable)
    return StepGroups(step, len(trajectories), tuple(counts), tuple(mass))


def rank(stored: Sequence[StoredTrajectory], kind: Kind) -> list[StoredTrajectory]:
    """Trajectories of one kind, most telling first.

    Among equal rewards the larger |advantage| goes first: the surprising successes and failures.
    """
    if kind == "truncated":
        return [s for s in stored if s.trajectory.finish_reason in TRUNCATED]
    if kind == "ungradable":
        return [s for s in stored if not s.trajectory.is_gradable]
    graded = [s for s in stored if s.trajectory.is_gradable]
    return sorted(graded, key=lambda s: (s.trajectory.reward, _mean_advantage(s.trajectory)), reverse=kind == "best")


def pick(step: int, kind: str, stored: Sequence[StoredTrajectory]) -> list[Sample]:
    """Choose from one step: best and worst rewards, truncated, without a reward, and some at random.

    The random choice depends on the step alone, so that a report can be made twice.
    """
    chance = random.Random(step).sample(range(len(stored)), min(PER_STEP, len(stored)))
    choices: dict[str, list[StoredTrajectory]] = {name: rank(stored, name)[:limit] for name, limit in LIMITS.items()}
    choices["random"] = [stored[i] for i in chance]
    groups = groups_of(s.trajectory for s in stored)
    samples: dict[str, Sample] = {}
    for name, chosen in choices.items():
        for one in chosen:
            members = _members(groups[one.trajectory.group_id])
            sample = samples.setdefault(one.trajectory.trajectory_id, Sample(one, step, kind, members=members))
            sample.tags.append(name)
    return list(samples.values())


def pair_evaluations(
    before: Sequence[StoredTrajectory], after: Sequence[StoredTrajectory], steps: tuple[int, int], limit: int = 12
) -> list[Sample]:
    """The same held-out tasks before and after training, one attempt each."""
    pools = {"before": (steps[0], before), "after": (steps[1], after)}
    tasks = {name: {s.trajectory.task.task_id for s in pool} for name, (_, pool) in pools.items()}
    shared = sorted(tasks["before"] & tasks["after"])
    chosen = shared if len(shared) <= limit else sorted(random.Random(0).sample(shared, limit))
    samples: list[Sample] = []
    for task in chosen:
        for name, (step, pool) in pools.items():
            attempts = [s for s in pool if s.trajectory.task.task_id == task]
            members = _members([s.trajectory for s in attempts])
            samples.append(Sample(attempts[0], step, "evaluation", [name], members))
    return samples


def limit_samples(samples: Sequence[Sample], per_tag: int = PER_TAG) -> list[Sample]:
    """Keep at most ``per_tag`` samples of each tag, spread evenly over the steps, newest included."""
    kept: set[int] = set()
    for name in {name for sample in samples for name in sample.tags}:
        indices = [i for i, sample in enumerate(samples) if name in sample.tags]
        stride = max(1.0, (len(indices) - 1) / max(per_tag - 1, 1)) if len(indices) > per_tag else 1.0
        kept.update(indices[round(i * stride)] for i in range(min(per_tag, len(indices))))
    return [sample for i, sample in enumerate(samples) if i in kept]


def spread(items: Sequence[int], limit: int) -> list[int]:
    """At most ``limit`` of the items, evenly spaced, first and last included."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def is_success(trajectory: Trajectory, thresholds: Mapping[str, float]) -> bool:
    """True if there is a reward and it reaches what counts as a success in its environment (1.0 if not stated)."""
    return trajectory.is_gradable and trajectory.reward >= thresholds.get(trajectory.task.environment, 1.0)


def outcome(trajectory: Trajectory) -> str:
    """The reward as text, or the status where there is none."""
    if trajectory.grade is None:
        return "not graded"
    return f"{trajectory.grade.reward:.3g}" if trajectory.grade.reward is not None else str(trajectory.grade.status)


def _members(group: Sequence[Trajectory]) -> list[tuple[str, str]]:
    return [(t.trajectory_id.rsplit("/", 1)[-1], outcome(t)) for t in group[:64]]


def _advantage_mass(trajectory: Trajectory) -> float:
    advantage, mask = trajectory.columns.advantage, trajectory.columns.loss_mask
    if advantage is None:
        return 0.0
    trained = advantage if mask is None else advantage[mask]
    return float(np.abs(trained[np.isfinite(trained)]).sum())


def _mean_advantage(trajectory: Trajectory) -> float:
    advantage, mask = trajectory.columns.advantage, trajectory.columns.loss_mask
    if advantage is None:
        return 0.0
    trained = advantage if mask is None else advantage[mask]
    trained = trained[np.isfinite(trained)]
    return float(trained.mean()) if trained.size else 0.0

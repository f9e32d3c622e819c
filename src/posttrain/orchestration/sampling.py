"""From drawn tasks to graded groups: requests, engine, trajectories, grades."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from posttrain.environment.grading import GradedTasks, failed
from posttrain.environment.protocol import Attempt
from posttrain.rollout.protocol import Completion, Engine, Request
from posttrain.rollout.turns import Turns
from posttrain.trajectory import (
    FinishReason,
    Group,
    Message,
    Origin,
    Role,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
    trajectory_id_of,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One attempt to be made: which task, in which group, at which place, sampled how."""

    task: Task
    group_id: str
    index: int
    role: Role
    sampling: SamplingParams


def sampling_seed(run_seed: int, trajectory_id: str, retry: int = 0) -> int:
    """63-bit seed of a trajectory's random stream: a hash of run, trajectory and retry, and of nothing else."""
    digest = hashlib.blake2b(f"{run_seed}/{trajectory_id}/{retry}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def members_of(
    task: Task, group_id: str, size: int, role: Role, sampling: SamplingParams, run_seed: int
) -> list[Member]:
    """The members of one group, each with its own random stream."""
    return [
        Member(
            task,
            group_id,
            index,
            role,
            replace(sampling, seed=sampling_seed(run_seed, trajectory_id_of(group_id, index))),
        )
        for index in range(size)
    ]


def baseline_member(task: Task, group_id: str, index: int, sampling: SamplingParams) -> Member:
    """The greedy attempt that a group is compared with; ``index`` is the first that no member has."""
    return Member(task, group_id, index, Role.BASELINE, replace(sampling, temperature=0.0))


def sample(
    engine: Engine,
    turns: Turns,
    members: Sequence[Member],
    attempt: int,
    on_group: Callable[[Group], None] = lambda group: None,
) -> list[Group]:
    """Sample all members; ``on_group`` is called with each group as soon as its last member has finished.

    Groups come back in the order of their first member.
    """
    prompts = {task.task_id: turns.prompt_ids(task) for task in {m.task.task_id: m.task for m in members}.values()}
    by_id = {trajectory_id_of(m.group_id, m.index): m for m in members}
    missing: dict[str, int] = {}
    for member in members:
        missing[member.group_id] = missing.get(member.group_id, 0) + 1
    engine.submit([Request(i, prompts[m.task.task_id], m.sampling) for i, m in by_id.items()])
    found: dict[str, dict[int, Trajectory]] = {group_id: {} for group_id in missing}
    groups: dict[str, Group] = {}
    while len(groups) < len(missing):
        for completion in engine.poll():
            member = by_id[completion.request_id]
            prompt = Segment(Origin.PROMPT, prompts[member.task.task_id])
            found[member.group_id][member.index] = _trajectory(member, prompt, completion, attempt)
            if len(found[member.group_id]) == missing[member.group_id]:
                ordered = [found[member.group_id][i] for i in sorted(found[member.group_id])]
                members_of_group = [t for t in ordered if t.role is not Role.BASELINE]
                baseline = next((t for t in ordered if t.role is Role.BASELINE), None)
                groups[member.group_id] = Group(member.group_id, member.task, members_of_group, baseline=baseline)
                on_group(groups[member.group_id])
    return [groups[group_id] for group_id in missing]


def _trajectory(member: Member, prompt: Segment, completion: Completion, attempt: int) -> Trajectory:
    trajectory = Trajectory(
        completion.request_id, member.group_id, member.task, member.sampling, member.role, attempt=attempt
    )
    for segment in (prompt, *completion.segments):
        trajectory.append(segment)
    trajectory.finish_reason = completion.finish_reason
    trajectory.failure = completion.failure
    times = trajectory.timings
    times.submitted, times.first_token, times.finished = (
        completion.submitted,
        completion.first_token,
        completion.finished,
    )
    return trajectory


def grade(environments: Mapping[str, GradedTasks], turns: Turns, trajectories: Sequence[Trajectory]) -> list[str]:
    """Grade trajectories in place, each by the environment of its task; returns their texts.

    What the engine did not finish is ``failed`` and never reaches a grader.
    """
    texts = [turns.text(t.model_token_ids) for t in trajectories]
    by_environment: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        if trajectory.finish_reason in (FinishReason.FAILED, FinishReason.ABORTED):
            trajectory.grade = failed(
                f"not sampled to its end: {trajectory.finish_reason} {trajectory.failure}".strip()
            )
        else:
            by_environment.setdefault(trajectory.task.environment, []).append(index)
    for name, indices in by_environment.items():
        attempts = [_attempt(turns, trajectories[i], texts[i]) for i in indices]
        for index, result in zip(indices, environments[name].grade(attempts), strict=True):
            trajectories[index].grade = result
    now = time.time()
    for trajectory in trajectories:
        trajectory.timings.graded = now
    return texts


def _attempt(turns: Turns, trajectory: Trajectory, text: str) -> Attempt:
    assert trajectory.finish_reason is not None
    return Attempt(
        task=trajectory.task,
        completion=text,
        messages=(*turns.conversation(trajectory.task), Message("assistant", text)),
        finish_reason=trajectory.finish_reason,
        num_tokens=trajectory.num_model_tokens,
        trajectory_id=trajectory.trajectory_id,
    )

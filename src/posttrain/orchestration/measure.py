"""What a finished step says about itself, by signal name."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from posttrain.environment.grading import GradedTasks
from posttrain.orchestration.batch import Batch, anchor_kl, mean_entropy, mismatch
from posttrain.orchestration.critic import critic_signals
from posttrain.policy.critic import CriticUpdate
from posttrain.policy.update import UpdateResult
from posttrain.rollout.protocol import EngineStats
from posttrain.rundir.engine import DeviceUse
from posttrain.trajectory import FinishReason, GradeStatus, Group, Trajectory

_CUT = (FinishReason.LENGTH, FinishReason.CONTEXT, FinishReason.BUDGET)


@dataclass(slots=True)
class PhaseClock:
    """Wall-clock seconds by phase of one step; ``phase`` is what is being done now."""

    seconds: dict[str, float] = field(default_factory=dict)
    phase: str = ""

    @contextmanager
    def measure(self, name: str) -> Generator[None]:
        """Add the time inside to ``name``. Phases do not nest: an inner one's time is taken from the outer."""
        outer, self.phase = self.phase, name
        started = time.perf_counter()
        before = dict(self.seconds)
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - sum(before.values())
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started - inner
            self.phase = outer

    def signals(self) -> dict[str, float]:
        """``time/PHASE`` of everything measured."""
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()}


def sampling_signals(trajectories: Sequence[Trajectory], environments: Mapping[str, GradedTasks]) -> dict[str, float]:
    """Lengths, finish reasons and rewards of everything sampled in a step, graded or not."""
    lengths = np.array([t.num_model_tokens for t in trajectories], np.float64)
    reasons = Counter(t.finish_reason for t in trajectories)
    count = max(len(trajectories), 1)
    values = {
        "rollout/trajectories": float(len(trajectories)),
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_p50": float(np.percentile(lengths, 50)),
        "rollout/length_p99": float(np.percentile(lengths, 99)),
        "rollout/length_max": float(lengths.max()),
        "rollout/truncated_share": sum(reasons[r] for r in _CUT) / count,
    }
    values |= {f"rollout/finish/{reason}": reasons[reason] / count for reason in FinishReason if reasons[reason]}
    graded = [t for t in trajectories if t.is_gradable]
    statuses = Counter(t.grade.status for t in trajectories if t.grade is not None)
    values |= {
        "reward/graded": float(statuses[GradeStatus.GRADED]),
        "reward/ungradable": float(statuses[GradeStatus.UNGRADABLE]),
        "reward/failed": float(statuses[GradeStatus.FAILED]),
        "reward/ungradable_share": 1.0 - statuses[GradeStatus.GRADED] / count,
    }
    if not graded:
        return values
    rewards = np.array([t.reward for t in graded])
    thresholds = np.array([environments[t.task.environment].success_threshold for t in graded])
    won = rewards >= thresholds
    tokens = np.array([t.num_model_tokens for t in graded], np.float64)
    values |= {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/min": float(rewards.min()),
        "reward/max": float(rewards.max()),
        "reward/success": float(won.mean()),
    }
    if won.any():
        values["rollout/length_correct_mean"] = float(tokens[won].mean())
    if not won.all():
        values["rollout/length_wrong_mean"] = float(tokens[~won].mean())
    return values | _parts(graded) | _by_environment(graded)


def _parts(graded: Sequence[Trajectory]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for trajectory in graded:
        assert trajectory.grade is not None
        for name, value in trajectory.grade.parts.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    values: dict[str, float] = {}
    for name, numbers in found.items():
        values[f"reward/part/{name}/mean"] = float(np.mean(numbers))
        values[f"reward/part/{name}/std"] = float(np.std(numbers))
    if "parsable" in found:
        values["reward/parsable_share"] = float(np.mean(found["parsable"]))
    return values


def _by_environment(graded: Sequence[Trajectory]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for trajectory in graded:
        found.setdefault(trajectory.task.environment, []).append(trajectory.reward)
    return {f"reward/environment/{name}/mean": float(np.mean(v)) for name, v in found.items()}


def grader_events(environments: Mapping[str, GradedTasks]) -> dict[str, float]:
    """Timeouts and restarts of all graders since they were built; a step's own are the difference of two."""
    return {
        "reward/grader_timeouts": float(sum(e.counts.timeouts for e in environments.values())),
        "reward/grader_restarts": float(sum(e.counts.restarts for e in environments.values())),
    }


def group_signals(groups: Sequence[Group], environments: Mapping[str, GradedTasks]) -> dict[str, float]:
    """Groups as they were sampled, those that were not trained included."""
    stds: list[float] = []
    all_won = all_lost = 0
    unique: list[float] = []
    for group in groups:
        rewards = group.rewards
        if rewards.size >= 2:
            stds.append(float(rewards.std(ddof=1)) if group.has_variance else 0.0)
            won = rewards >= environments[group.task.environment].success_threshold
            all_won, all_lost = all_won + bool(won.all()), all_lost + (not won.any())
        texts = {t.model_token_ids.tobytes() for t in group}
        unique.append(len(texts) / len(group.trajectories))
    values = {"rollout/groups": float(len(groups)), "rollout/unique_share": float(np.mean(unique))}
    if stds:
        values |= {
            "reward/group_std_mean": float(np.mean(stds)),
            "reward/all_success_groups": all_won / len(stds),
            "reward/all_fail_groups": all_lost / len(stds),
        }
    return values


def engine_signals(before: EngineStats, after: EngineStats, rollout_seconds: float) -> dict[str, float]:
    """What the engine did between two snapshots."""
    generated = after.generated_tokens - before.generated_tokens
    return {
        "rollout/generated_tokens": float(generated),
        "rollout/prefilled_tokens": float(after.prefilled_tokens - before.prefilled_tokens),
        "rollout/shared_prompt_tokens": float(after.shared_prompt_tokens - before.shared_prompt_tokens),
        "rollout/decode_steps": float(after.decode_steps - before.decode_steps),
        "rollout/preempted": float(after.preempted - before.preempted),
        "rollout/tokens_per_second": generated / max(rollout_seconds, 1e-9),
        "rollout/kv_peak": float(after.kv_bytes_peak),
    }


def update_signals(
    batch: Batch, result: UpdateResult, training_seconds: float, clip: float, critic: CriticUpdate | None = None
) -> dict[str, float]:
    """What the policy update saw and did."""
    values = batch.statistics.finalize() | mismatch(batch)
    values |= result.statistics.finalize(result.trained_tokens, len(result.steps))
    entropy = mean_entropy(batch)
    if entropy is not None:
        values["policy/entropy"] = entropy
    values |= result.terms.finalize()
    if "policy/anchor_kl" not in values and (kl := anchor_kl(batch)) is not None:
        values["policy/anchor_kl"] = kl
    if batch.teacher is not None:
        values |= batch.teacher.signals()
    if result.kl_weight is not None:
        values["policy/kl_penalty_weight"] = result.kl_weight
    if batch.critic is not None and critic is not None:
        del values["policy/advantage_group_mean_max"]  # a promise of group baselines alone
        values |= critic_signals(batch.critic, critic, batch.table)
    norms = [s.grad_norm for s in result.steps]
    if not result.frozen:  # a gradient that nobody computed is not one of size 0
        values |= {
            "policy/grad_norm": float(np.mean(norms)),
            "policy/grad_clipped": float(np.mean([n > clip for n in norms])),
            "policy/learning_rate": result.steps[-1].learning_rate,
        }
    return values | {
        "policy/updates": float(sum(norm > 0 for norm in norms)),
        "policy/trained_tokens": float(result.trained_tokens),
        "policy/overlong_filtered": float((batch.table.trained_tokens == 0).sum()),
        "policy/trained_sequences": float((batch.table.trained_tokens > 0).sum()),
        "train/tokens_per_second": result.packed_tokens / max(training_seconds, 1e-9),
        "train/computed_tokens": float(result.packed_tokens),
        "train/micro_batches": float(result.micro_batches),
    }


def memory_signals() -> dict[str, float]:
    """Largest resident memory of this process so far, and of the GPU if there is one, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {"run/peak_memory": float(peak if sys.platform == "darwin" else peak * 1024)}
    if torch.cuda.is_available():
        values["run/peak_device_memory"] = float(torch.cuda.max_memory_allocated())
    return values


def device_use() -> DeviceUse:
    """Memory allocated on the GPU now."""
    return DeviceUse(int(torch.cuda.memory_allocated()))

"""The one record that flows through every layer.

Everything a layer needs to know about sampled data is here: which tokens, who produced them, under
which policy version, with which log-prob, how they were graded. Text is derived from token ids; ids
are never derived from sampled text.

Legend: ``n`` tokens of one segment, ``T`` tokens of one trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class RecordError(ValueError):
    """A record that contradicts itself: lists out of line, a version that goes back, a missing log-prob."""


class Origin(IntEnum):
    """Who produced a token."""

    PROMPT = 0
    MODEL = 1
    ENVIRONMENT = 2
    DATA = 3


class Role(StrEnum):
    """What a trajectory is for. Only ``train`` is ever trained on."""

    TRAIN = "train"
    BASELINE = "baseline"
    EVALUATION = "evaluation"


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    BUDGET = "budget"
    CONTEXT = "context"
    ABORTED = "aborted"
    FAILED = "failed"


class GradeStatus(StrEnum):
    """Whether a reward exists. Only ``graded`` carries one; the others are never a reward of 0."""

    GRADED = "graded"
    UNGRADABLE = "ungradable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to solve: what is asked, what is right, and where it comes from.

    ``gold`` and ``metadata`` hold JSON-compatible data; graders read them, the policy never sees them.
    """

    task_id: str
    messages: tuple[Message, ...]
    gold: Any
    environment: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a trajectory is sampled. ``temperature`` 0 is greedy; ``top_k`` 0 means no limit.

    ``stop_token_ids`` end generation and are part of the sampled tokens. ``ignore_stop`` forces
    ``max_new_tokens`` tokens (benchmarks).
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_stop: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """The environment's judgement of one trajectory.

    ``parts`` are the named components before weighting; a part that does not apply is ``None``.
    ``reason`` says how the grade was reached, or why there is none.
    """

    status: GradeStatus
    reward: float | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.status is GradeStatus.GRADED) != (self.reward is not None):
            raise RecordError(f"a grade has a reward exactly when it is graded, got {self.status} with {self.reward}")
        if self.reward is not None and not np.isfinite(self.reward):
            raise RecordError(f"a reward must be finite, got {self.reward}")


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one origin under one policy version.

    ``token_ids`` int32 (n,). For origin ``MODEL``: ``logprobs`` float32 (n,), of the distribution really
    sampled from, and ``policy_version``; for every other origin both are ``None``.
    """

    origin: Origin
    token_ids: IntArray
    logprobs: FloatArray | None = None
    policy_version: int | None = None

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.token_ids.dtype != np.int32:
            raise RecordError(f"token ids must be flat int32, got {self.token_ids.dtype} {self.token_ids.shape}")
        if self.origin is Origin.MODEL:
            if self.logprobs is None or self.policy_version is None:
                raise RecordError("a model segment needs log-probs and a policy version")
            if self.logprobs.shape != self.token_ids.shape or self.logprobs.dtype != np.float32:
                raise RecordError(
                    f"log-probs must be float32 of shape {self.token_ids.shape}, "
                    f"got {self.logprobs.dtype} {self.logprobs.shape}"
                )
            if not np.isfinite(self.logprobs).all():
                raise RecordError(f"log-prob {int(np.argmin(np.isfinite(self.logprobs)))} of the segment is not finite")
        elif self.logprobs is not None or self.policy_version is not None:
            raise RecordError(f"a {self.origin.name.lower()} segment carries neither log-probs nor a policy version")

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@dataclass(slots=True)
class TokenColumns:
    """What training adds to each token, all of shape (T,); ``None`` until computed.

    ``trainer_logprob`` is the trainer's log-prob under the policy before the first update on the batch,
    ``loss_mask`` is true where the token is trained, ``advantage`` is what multiplied it. Log-probs are
    NaN where a token is not scored (prompt and environment tokens), and so is ``value``: the return that a critic
    expected before the token.
    """

    trainer_logprob: FloatArray | None = None
    reference_logprob: FloatArray | None = None
    advantage: FloatArray | None = None
    loss_mask: BoolArray | None = None
    value: FloatArray | None = None
    teacher_logprob: FloatArray | None = None


@dataclass(slots=True)
class Timings:
    """Wall-clock seconds since the epoch; 0.0 means not yet."""

    submitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    graded: float = 0.0


@dataclass(slots=True)
class Trajectory:
    """One attempt at one task: ordered segments, how they were sampled, why they ended, how they were graded."""

    trajectory_id: str
    group_id: str
    task: Task
    sampling: SamplingParams
    role: Role = Role.TRAIN
    segments: list[Segment] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    grade: Grade | None = None
    columns: TokenColumns = field(default_factory=TokenColumns)
    timings: Timings = field(default_factory=Timings)
    retry: int = 0
    attempt: int = 0
    parent_id: str | None = None
    shared_prefix_tokens: int = 0
    failure: str = ""

    def append(self, segment: Segment) -> None:
        """Add a segment. The one way tokens enter a trajectory.

        Raises RecordError if the trajectory is finished or a model segment's version goes back.
        """
        if self.finish_reason is not None:
            raise RecordError(f"{self.trajectory_id} is finished ({self.finish_reason}); nothing can be appended")
        last = self.last_policy_version
        if segment.policy_version is not None and last is not None and segment.policy_version < last:
            raise RecordError(f"{self.trajectory_id}: policy version goes back from {last} to {segment.policy_version}")
        self.segments.append(segment)

    @property
    def last_policy_version(self) -> int | None:
        """Version of the newest model segment, or ``None``."""
        versions = [s.policy_version for s in self.segments if s.policy_version is not None]
        return versions[-1] if versions else None

    def __len__(self) -> int:
        return sum(len(s) for s in self.segments)

    @property
    def token_ids(self) -> IntArray:
        """All token ids, int32 (T,)."""
        return _concatenate([s.token_ids for s in self.segments], np.int32)

    @property
    def origins(self) -> npt.NDArray[np.int8]:
        """Origin of each token, int8 (T,)."""
        return _concatenate([np.full(len(s), s.origin, np.int8) for s in self.segments], np.int8)

    @property
    def policy_versions(self) -> npt.NDArray[np.int64]:
        """Policy version of each token, int64 (T,); -1 where no policy produced it."""
        return _concatenate(
            [np.full(len(s), -1 if s.policy_version is None else s.policy_version, np.int64) for s in self.segments],
            np.int64,
        )

    @property
    def sampler_logprobs(self) -> FloatArray:
        """Sampler's log-prob of each token, float32 (T,); NaN where no policy produced it."""
        return _concatenate(
            [s.logprobs if s.logprobs is not None else np.full(len(s), np.nan, np.float32) for s in self.segments],
            np.float32,
        )

    @property
    def model_mask(self) -> BoolArray:
        """True where the policy sampled the token, bool (T,)."""
        return self.origins == Origin.MODEL

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first sampled one."""
        count = 0
        for segment in self.segments:
            if segment.origin is Origin.MODEL:
                break
            count += len(segment)
        return count

    @property
    def num_model_tokens(self) -> int:
        """Tokens the policy sampled."""
        return sum(len(s) for s in self.segments if s.origin is Origin.MODEL)

    @property
    def model_token_ids(self) -> IntArray:
        """Ids of the sampled tokens alone, int32."""
        return _concatenate([s.token_ids for s in self.segments if s.origin is Origin.MODEL], np.int32)

    @property
    def is_gradable(self) -> bool:
        """True if a reward exists."""
        return self.grade is not None and self.grade.status is GradeStatus.GRADED

    @property
    def reward(self) -> float:
        """The reward. Raises RecordError where there is none: no default stands in for it."""
        if self.grade is None or self.grade.reward is None:
            status = self.grade.status if self.grade else "not graded"
            raise RecordError(f"{self.trajectory_id} has no reward ({status})")
        return self.grade.reward

    def set_columns(self, columns: TokenColumns) -> None:
        """Attach per-token training data. Raises RecordError if a column is not of length T."""
        length = len(self)
        for name in ("trainer_logprob", "reference_logprob", "advantage", "loss_mask", "value", "teacher_logprob"):
            column = getattr(columns, name)
            if column is not None and column.shape != (length,):
                raise RecordError(f"{self.trajectory_id}: column {name} has shape {column.shape}, expected ({length},)")
        self.columns = columns


@dataclass(slots=True)
class Group:
    """Trajectories of one task, held together by an explicit id, never by position.

    ``baseline`` is an attempt the others are compared with, which is never trained itself.
    """

    group_id: str
    task: Task
    trajectories: list[Trajectory]
    discard_reason: str = ""
    baseline: Trajectory | None = None

    def __post_init__(self) -> None:
        for trajectory in self.attempts:
            if trajectory.group_id != self.group_id:
                raise RecordError(f"{trajectory.trajectory_id} belongs to {trajectory.group_id}, not {self.group_id}")

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    @property
    def attempts(self) -> list[Trajectory]:
        """Everything that was sampled for the task: the members, then the baseline if there is one."""
        return self.trajectories if self.baseline is None else [*self.trajectories, self.baseline]

    @property
    def gradable(self) -> list[Trajectory]:
        """Members with a reward that may be trained: not aborted, not failed."""
        excluded = (FinishReason.ABORTED, FinishReason.FAILED)
        return [t for t in self.trajectories if t.is_gradable and t.finish_reason not in excluded]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """Rewards of the gradable members, float64."""
        return np.array([t.reward for t in self.gradable], np.float64)

    @property
    def has_variance(self) -> bool:
        """True if at least two gradable members differ. Compared exactly: a tiny std is not a spread."""
        rewards = self.rewards
        return rewards.size >= 2 and bool(rewards.max() != rewards.min())


def group_id_of(task_id: str, epoch: int, draw: int) -> str:
    """Identifier of a group: which task, which pass over the tasks, which draw within it."""
    return f"{task_id}/{epoch}/{draw}"


def trajectory_id_of(group_id: str, index: int) -> str:
    """Identifier of one member of a group."""
    return f"{group_id}/{index}"


def _concatenate(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)

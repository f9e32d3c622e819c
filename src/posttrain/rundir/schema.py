"""Columns of a trajectory file. One row is one trajectory; token columns are aligned lists over *all* its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type, and what it says. ``nullable`` states whether a row (or a token) may have none."""

    name: str
    kind: Any
    meaning: str
    nullable: bool = False


def _tokens(kind: Any) -> Any:
    return pa.list_(pa.field("element", kind, nullable=True))


SCALARS: tuple[Column, ...] = (
    Column("schema_version", pa.int32(), "Version of this schema."),
    Column("trajectory_id", pa.string(), "Group id / index."),
    Column("group_id", pa.string(), "Task id / epoch / draw. Members of a group share it; nothing else does."),
    Column("role", pa.string(), "train, baseline or evaluation."),
    Column("parent_id", pa.string(), "Trajectory this one branched from.", nullable=True),
    Column("shared_prefix_tokens", pa.int32(), "Leading tokens shared with the parent; trained once, with the parent."),
    Column("pair_id", pa.string(), "Preference pair this one belongs to.", nullable=True),
    Column("pair_side", pa.string(), "chosen or rejected.", nullable=True),
    Column("attempt", pa.int32(), "Process start that sampled it, from 1."),
    Column("retry", pa.int32(), "Resubmissions after a lost request."),
    Column("task_id", pa.string(), "Task it tries to solve."),
    Column("environment", pa.string(), "Environment of the task."),
    Column("messages", pa.string(), 'The task as JSON: [{"role": ..., "content": ...}, ...].'),
    Column("gold", pa.string(), "What the grader compares with, as JSON."),
    Column("task_metadata", pa.string(), "Further data of the task, as a JSON object."),
    Column("completion", pa.string(), "Text of the sampled tokens. Derived for readers; never read back.", True),
    Column("finish_reason", pa.string(), "stop, length, budget, context, aborted or failed.", nullable=True),
    Column("failure", pa.string(), "What went wrong in sampling; empty if nothing did."),
    Column("grade_status", pa.string(), "graded, ungradable or failed; null before grading.", nullable=True),
    Column("reward", pa.float64(), "The reward. Null unless graded: no number stands in for it.", nullable=True),
    Column(
        "reward_parts",
        pa.map_(pa.string(), pa.float64()),
        "Named parts before weighting; null for a part that does not apply.",
        nullable=True,
    ),
    Column("grade_reason", pa.string(), "How the grade was reached, or why there is none.", nullable=True),
    Column("group_discard_reason", pa.string(), "Why its group was not trained; null if it was.", nullable=True),
    Column("max_new_tokens", pa.int32(), "Sampling: most tokens to sample."),
    Column("temperature", pa.float64(), "Sampling: 0 is greedy."),
    Column("top_p", pa.float64(), "Sampling: 1 is off."),
    Column("top_k", pa.int32(), "Sampling: 0 is off."),
    Column("seed", pa.int64(), "Sampling: seed of this request's random stream."),
    Column("stop_token_ids", pa.list_(pa.int32()), "Sampling: ids that end generation; the one sampled is kept."),
    Column("ignore_stop", pa.bool_(), "Sampling: true if the length was forced."),
    Column("submitted_at", pa.float64(), "Seconds since the epoch; 0 means not yet."),
    Column("first_token_at", pa.float64(), "Seconds since the epoch; 0 means not yet."),
    Column("finished_at", pa.float64(), "Seconds since the epoch; 0 means not yet."),
    Column("graded_at", pa.float64(), "Seconds since the epoch; 0 means not yet."),
)
"""One value a trajectory."""

SEGMENTS: tuple[Column, ...] = (
    Column("segment_length", pa.list_(pa.int32()), "Tokens of each segment (one origin, one policy version)."),
    Column("segment_origin", pa.list_(pa.int8()), "Origin of each segment."),
    Column("segment_policy_version", _tokens(pa.int64()), "Policy version of each segment; null unless sampled."),
)
"""One value a segment. They keep segment borders that the token columns cannot show."""

TOKENS: tuple[Column, ...] = (
    Column("token_id", pa.list_(pa.int32()), "Token id."),
    Column("origin", pa.list_(pa.int8()), "Who produced it: 0 prompt, 1 model, 2 environment, 3 data."),
    Column("policy_version", _tokens(pa.int64()), "Policy version that sampled it; null unless sampled."),
    Column(
        "sampler_logprob",
        _tokens(pa.float32()),
        "Log-prob of the distribution really sampled from; null unless sampled.",
    ),
    Column(
        "trainer_logprob",
        _tokens(pa.float32()),
        "Trainer's log-prob under the policy before the first update on the batch; null where not scored.",
        nullable=True,
    ),
    Column("reference_logprob", _tokens(pa.float32()), "Reference policy's log-prob; null where not scored.", True),
    Column("advantage", pa.list_(pa.float32()), "What multiplied the token in the objective.", nullable=True),
    Column("loss_mask", pa.list_(pa.bool_()), "True where the token is in the loss.", nullable=True),
    Column(
        "value", _tokens(pa.float32()), "Return that a critic expected before the token; null where not scored.", True
    ),
    Column("teacher_logprob", _tokens(pa.float32()), "Teacher's log-prob; null where not scored.", True),
)
"""One value a token. A nullable column is null as a whole where it was never computed."""

LATER: tuple[str, ...] = ("value", "teacher_logprob")
"""Token columns that files of earlier versions lack."""

COLUMNS: tuple[Column, ...] = SCALARS + SEGMENTS + TOKENS

ARROW_SCHEMA = pa.schema(
    [pa.field(c.name, c.kind, nullable=c.nullable) for c in COLUMNS],
    metadata={"posttrain_schema_version": str(SCHEMA_VERSION)},
)
"""Schema of a file. Later versions may add nullable columns; they never rename or drop one."""

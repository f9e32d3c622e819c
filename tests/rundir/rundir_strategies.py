"""Trajectories of every shape the record allows."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    Role,
    SamplingParams,
    Segment,
    Task,
    Timings,
    TokenColumns,
    Trajectory,
)

anything = st.text(st.characters(), max_size=8)
"""Any text, lone surrogates included."""
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=5,
)
tasks = st.builds(
    Task,
    task_id=words,
    messages=st.lists(st.builds(Message, role=words, content=anything), max_size=3).map(tuple),
    gold=json_values,
    environment=words,
    metadata=st.dictionaries(anything, json_values, max_size=2),
)
sampling = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(1, 4096),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    seed=st.integers(-(2**63), 2**63 - 1),
    stop_token_ids=st.lists(st.integers(0, 50000), max_size=3).map(tuple),
    ignore_stop=st.booleans(),
)
grades = st.none() | st.one_of(
    st.builds(
        Grade,
        status=st.just(GradeStatus.GRADED),
        reward=st.floats(-1e9, 1e9),
        parts=st.dictionaries(words, st.none() | st.floats(allow_nan=False), max_size=3),
        reason=words,
    ),
    st.builds(Grade, status=st.sampled_from([GradeStatus.UNGRADABLE, GradeStatus.FAILED]), reason=words),
)
finite32 = st.floats(-1e3, 0, width=32)
float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Any number of segments, empty ones too, versions that rise, and any subset of the columns."""
    result = Trajectory(
        trajectory_id=draw(words),
        group_id=draw(words),
        task=draw(tasks),
        sampling=draw(sampling),
        role=draw(st.sampled_from(Role)),
        timings=Timings(*draw(st.lists(st.floats(0, 2e9), min_size=4, max_size=4))),
        retry=draw(st.integers(0, 5)),
        attempt=draw(st.integers(0, 5)),
        parent_id=draw(st.none() | words),
        shared_prefix_tokens=draw(st.integers(0, 9)),
        failure=draw(words),
    )
    version = 0
    for origin in draw(st.lists(st.sampled_from(Origin), max_size=5)):
        length = draw(st.integers(0, 4))
        ids = draw(hnp.arrays(np.int32, length))
        if origin is Origin.MODEL:
            version += draw(st.integers(0, 2))
            logprobs = draw(hnp.arrays(np.float32, length, elements=finite32))
            result.append(Segment(origin, ids, logprobs, version))
        else:
            result.append(Segment(origin, ids))
    result.finish_reason = draw(st.none() | st.sampled_from(FinishReason))
    result.grade = draw(grades)
    total = len(result)

    def column(dtype: type, elements: st.SearchStrategy | None) -> np.ndarray | None:
        return draw(st.none() | hnp.arrays(dtype, total, elements=elements))

    result.set_columns(
        TokenColumns(
            trainer_logprob=column(np.float32, float32),
            reference_logprob=column(np.float32, float32),
            advantage=column(np.float32, float32),
            loss_mask=column(np.bool_, None),
            value=column(np.float32, float32),
            teacher_logprob=column(np.float32, float32),
        )
    )
    return result

"""Lanes: every row once and in order, each thread with its share of the machine, and nothing left changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from policies import make_model, make_trainer

from posttrain.rollout.native.engine import NativeEngine, NativeSettings
from posttrain.rollout.native.lanes import ROWS_PER_LANE, Lanes
from posttrain.rollout.protocol import Completion, Request
from posttrain.trajectory import SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "rows", "lanes"), [(2, 3 * ROWS_PER_LANE + 1, 2), (4, 2 * ROWS_PER_LANE, 2)])
def test_each_lane_has_its_rows_and_its_share_of_the_threads(threads: int, rows: int, lanes: int) -> None:
    torch.set_num_threads(threads)
    pool = Lanes(CPU)

    def work(lane: int, part: slice) -> tuple[int, list[int], int, bool, str]:
        torch.relu(torch.ones(8))  # the share must hold once the thread has computed
        rows_here = list(range(part.start, part.stop))
        return lane, rows_here, torch.get_num_threads(), torch.is_inference_mode_enabled(), _here()

    found = pool.map(work, rows)
    assert [f[0] for f in found] == list(range(lanes))
    assert [row for f in found for row in f[1]] == list(range(rows))
    assert max(len(f[1]) for f in found) - min(len(f[1]) for f in found) <= 1
    assert {f[2:4] for f in found} == {(threads // lanes, True)}
    assert _here() not in {f[4] for f in found}
    assert torch.get_num_threads() == threads
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [threads], "a thread that begins later must not inherit a lane's share"
    pool.close()


@pytest.mark.parametrize(
    ("device", "threads", "rows"),
    [(CPU, 2, 2 * ROWS_PER_LANE - 1), (CPU, 1, 500), (torch.device("meta"), 2, 500)],
)
def test_work_that_gains_nothing_stays_in_the_callers_thread(device: torch.device, threads: int, rows: int) -> None:
    torch.set_num_threads(threads)
    pool = Lanes(device)
    assert pool.count(rows) == 1
    assert pool.map(lambda lane, part: (lane, part, _here()), rows) == [(0, slice(0, rows), _here())]


def test_an_error_comes_out_when_all_lanes_have_ended() -> None:
    torch.set_num_threads(2)
    pool = Lanes(CPU)
    ended: list[int] = []

    def work(lane: int, part: slice) -> None:
        if lane == 0:
            raise ValueError("of the first")
        time.sleep(0.05)
        ended.append(lane)

    with pytest.raises(ValueError, match="of the first"):
        pool.map(work, 2 * ROWS_PER_LANE)
    assert ended == [1]
    assert pool.map(lambda lane, part: lane, 2 * ROWS_PER_LANE) == [0, 1]
    pool.close()


def test_the_threads_follow_the_setting() -> None:
    pool = Lanes(CPU)
    for threads in (2, 4, 2):
        torch.set_num_threads(threads)
        found = pool.map(lambda lane, part: torch.get_num_threads(), 2 * ROWS_PER_LANE)
        assert found == [threads // 2] * 2
    pool.close()
    assert pool.map(lambda lane, part: lane, 2 * ROWS_PER_LANE) == [0, 1]
    pool.close()


def test_a_request_does_not_depend_on_the_lanes() -> None:
    """Rows enter and leave, so that lanes change their number and their rows on the way."""
    random = np.random.default_rng(0)
    requests = [
        Request(
            f"r{i}",
            random.integers(6, 102, 3 + i % 7).astype(np.int32),
            SamplingParams(2 + i % 4, 1.0, seed=i, ignore_stop=True),
        )
        for i in range(2 * ROWS_PER_LANE + 8)
    ]
    alone, together = (_rollout(requests, threads) for threads in (1, 2))
    for first, second in zip(alone, together, strict=True):
        for a, b in zip(first.segments, second.segments, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.logprobs is not None
            assert b.logprobs is not None
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def _rollout(requests: list[Request], threads: int) -> list[Completion]:
    torch.set_num_threads(threads)
    model = make_model()
    engine = NativeEngine(model, torch.float32, NativeSettings(64, 1 << 24, 2 * ROWS_PER_LANE + 3))
    engine.load_weights(make_trainer(model).export())
    done = engine.run(requests)
    engine.close()
    return done


def _here() -> str:
    return threading.current_thread().name

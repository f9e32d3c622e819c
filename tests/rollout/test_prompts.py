"""Prompts prefilled together: nothing lost, nothing out of place, and common beginnings computed once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from posttrain.model.packing import Block, CostModel, pack
from posttrain.rollout.native.prompts import common_prefix, prompt_blocks, prompt_places
from posttrain.trajectory import IntArray

LINEAR = CostModel(per_token=1.0, per_pair=0.0)

prompt_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


def arrays(prompts: list[list[int]]) -> list[IntArray]:
    return [np.array(p, np.int32) for p in prompts]


def tokens(blocks: list[Block]) -> int:
    return sum(len(b) for b in blocks)


@given(prompt_lists, st.booleans(), st.sampled_from([0.0, 0.01, 1.0]))
def test_every_prompt_is_found_again_with_its_positions(prompts: list[list[int]], share: bool, per_pair: float) -> None:
    blocks = prompt_blocks(arrays(prompts), CostModel(1.0, per_pair), share)
    packed = pack(blocks)
    found = dict(prompt_places(blocks))
    assert sorted(found) == list(range(len(prompts)))
    for index, places in found.items():
        assert packed.token_ids[places].tolist() == prompts[index]
        assert packed.position_ids[places].tolist() == list(range(len(prompts[index])))
    total = sum(map(len, prompts))
    assert packed.num_tokens <= total
    if not share:
        assert packed.num_tokens == total


@given(prompt_lists)
def test_the_order_of_the_prompts_changes_nothing(prompts: list[list[int]]) -> None:
    first = tokens(prompt_blocks(arrays(prompts), LINEAR, share=True))
    assert tokens(prompt_blocks(arrays(prompts[::-1]), LINEAR, share=True)) == first


def test_a_common_beginning_is_computed_once() -> None:
    start = list(range(100, 130))
    prompts = arrays([[*start, i, i + 1, 7] for i in range(10)])
    assert tokens(prompt_blocks(prompts, LINEAR, share=True)) == 30 + 10 * 3


def test_environments_that_begin_differently_do_not_cost_each_other_their_beginnings() -> None:
    first, second = list(range(100, 130)), [*range(100, 102), *range(200, 230)]
    prompts = arrays([[*s, i] for i in range(8) for s in (first, second)])
    assert tokens(prompt_blocks(prompts, LINEAR, share=True)) == 30 + 32 + 16


def test_common_prefix_of_a_prompt_and_its_continuation() -> None:
    a, b = np.array([1, 2, 3], np.int32), np.array([1, 2, 3, 4], np.int32)
    assert common_prefix(a, b) == common_prefix(b, a) == common_prefix(a, a) == 3
    assert common_prefix(a, np.array([1, 5, 3], np.int32)) == 1
    assert common_prefix(a, np.empty(0, np.int32)) == 0

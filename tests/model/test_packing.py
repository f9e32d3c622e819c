"""Packing: who sees whom, how batches are cut, and that none of it changes a number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import make_sequences

from posttrain.model.packing import (
    Block,
    CostModel,
    TrainSequence,
    block_mask,
    build_blocks,
    pack,
    plan_micro_batches,
)

CHEAP_PAIRS = CostModel(per_token=1e6, per_pair=1.0)
CHEAP_TOKENS = CostModel(per_token=1.0, per_pair=1e6)

shapes = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=5)), min_size=1, max_size=5
)


def visible(block: Block, window: int | None) -> np.ndarray:
    """The mask by definition: token by token, from the sequence each token belongs to and its place in it."""
    owner = [None] * len(block.prefix)
    place = list(range(len(block.prefix)))
    for number, length in enumerate(block.branch_lengths):
        owner += [number] * length
        place += range(len(block.prefix), len(block.prefix) + length)
    size = len(block)
    mask = np.zeros((size, size), bool)
    for query, key in itertools.product(range(size), repeat=2):
        same = owner[key] is None or owner[key] == owner[query]
        near = window is None or place[query] - place[key] < window
        mask[query, key] = same and place[key] <= place[query] and near
    return mask


@given(shapes, st.sampled_from([None, 1, 3, 100]))
def test_a_token_sees_its_own_past_and_nothing_else(groups: list[tuple[int, list[int]]], window: int | None) -> None:
    for block in build_blocks(make_sequences(groups), CHEAP_PAIRS):
        mask = block_mask(block, len(block) + 3, window)
        size = len(block)
        np.testing.assert_array_equal(mask[:size, :size], visible(block, window))
        assert not mask[:, size:].any()
        assert mask[size:].any(axis=1).all()


@given(shapes, st.booleans(), st.sampled_from([CHEAP_PAIRS, CHEAP_TOKENS]), st.integers(5, 60))
def test_every_target_is_packed_once_behind_its_own_past(
    groups: list[tuple[int, list[int]]], share: bool, cost: CostModel, limit: int
) -> None:
    sequences = make_sequences(groups)
    seen: list[tuple[int, int]] = []
    for blocks in plan_micro_batches(build_blocks(sequences, cost, share), limit, limit**2):
        packed = pack(blocks)
        masks = [block_mask(b, len(b)) for b in blocks]
        starts = np.cumsum([0, *(len(b) for b in blocks)])
        for row in range(len(packed.target_ids)):
            index, offset = int(packed.target_sequence[row]), int(packed.target_offset[row])
            seen.append((index, offset))
            ids = sequences[index].token_ids
            assert packed.target_ids[row] == ids[offset]
            place = int(packed.predictor[row])
            number = int(np.searchsorted(starts, place, side="right")) - 1
            past = starts[number] + np.flatnonzero(masks[number][place - starts[number]])
            np.testing.assert_array_equal(packed.token_ids[past], ids[:offset])
            np.testing.assert_array_equal(packed.position_ids[past], np.arange(offset))
    wanted = [(s.index, int(o)) for s in sequences for o in np.flatnonzero(s.target_mask)]
    assert sorted(seen) == sorted(wanted)


@given(shapes, st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_plan_does_not_depend_on_the_order_of_blocks(
    groups: list[tuple[int, list[int]]], random: object, limit: int
) -> None:
    blocks = build_blocks(make_sequences(groups), CHEAP_PAIRS)
    shuffled = blocks[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def names(plan: list[list[Block]]) -> list[list[int]]:
        return [[b.sequences[0].index for b in batch] for batch in plan]

    assert names(plan_micro_batches(blocks, limit, limit**2)) == names(plan_micro_batches(shuffled, limit, limit**2))


@given(shapes, st.integers(1, 40), st.integers(1, 400))
def test_limits_hold_except_for_a_block_that_is_larger_alone(
    groups: list[tuple[int, list[int]]], tokens: int, pairs: int
) -> None:
    for batch in plan_micro_batches(build_blocks(make_sequences(groups), CHEAP_PAIRS), tokens, pairs):
        if len(batch) > 1:
            assert sum(len(b) for b in batch) <= tokens
            assert sum(len(b) ** 2 for b in batch) <= pairs


def test_a_prompt_is_shared_where_that_is_cheaper() -> None:
    group = make_sequences([(50, [10] * 8)])
    assert [len(b.sequences) for b in build_blocks(group, CHEAP_PAIRS)] == [8]
    assert [len(b.sequences) for b in build_blocks(make_sequences([(2, [30] * 8)]), CHEAP_TOKENS)] == [1] * 8
    # 50 + 8 x 10 = 130 tokens and 16900 pairs in one block; two halves: 180 tokens and 16200 pairs.
    assert [len(b.sequences) for b in build_blocks(group, CostModel(1.0, 0.1))] == [4, 4]
    assert [len(b.sequences) for b in build_blocks(group, CHEAP_PAIRS, share_prefixes=False)] == [1] * 8


@given(st.integers(1, 40), st.lists(st.integers(1, 60), min_size=1, max_size=16), st.floats(1e-3, 1e3))
def test_the_chosen_cut_is_never_dearer_than_one_block_or_none(prefix: int, lengths: list[int], pair: float) -> None:
    cost = CostModel(1.0, pair)

    def price(blocks: list[Block]) -> float:
        return sum(len(b) + pair * len(b) ** 2 for b in blocks)

    sequences = make_sequences([(prefix, lengths)])
    chosen = price(build_blocks(sequences, cost))
    whole = [Block(sequences[0].token_ids[:prefix], tuple(sequences))]
    assert chosen <= price(whole) * (1 + 1e-9)
    assert chosen <= price(build_blocks(sequences, cost, share_prefixes=False)) * (1 + 1e-9)


def test_sequences_of_one_group_must_begin_alike() -> None:
    sequences = make_sequences([(4, [2]), (4, [2])])
    forged = [TrainSequence(s.index, s.token_ids, s.target_mask, 4, "same") for s in sequences]
    with pytest.raises(ValueError, match="do not begin with the same tokens"):
        build_blocks(forged, CHEAP_PAIRS)


@pytest.mark.parametrize(
    ("prefix", "mask"), [(0, [False, True]), (3, [False, False]), (2, [False, True]), (1, [False, True, True])]
)
def test_a_contradictory_sequence_is_refused(prefix: int, mask: list[bool]) -> None:
    with pytest.raises(ValueError, match=r"prefix|mask"):
        TrainSequence(0, np.array([1, 2], np.int32), np.array(mask), prefix, "g")

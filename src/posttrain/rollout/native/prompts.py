"""Prompts to be prefilled together: the beginning that several have in common is computed once.

Prompts of one environment begin alike (the chat template, a system message, the wording of the task), so most of
what a prefill would compute for the second prompt it has computed for the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from posttrain.model.packing import Block, CostModel, TrainSequence, build_blocks
from posttrain.trajectory import IntArray


def common_prefix(first: IntArray, second: IntArray) -> int:
    """Number of ids with which both begin."""
    shorter = min(len(first), len(second))
    differs = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(differs[0]) if len(differs) else shorter


def prompt_blocks(prompts: Sequence[IntArray], cost: CostModel, share: bool) -> list[Block]:
    """Blocks that compute each prompt once, and common beginnings once a block; sequence i is prompt i.

    In lexicographic order the prompts that share most are neighbours. A run of neighbours grows as long as that
    saves tokens; how a run is cut into blocks is decided by ``build_blocks``.
    """
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tolist())
    runs: list[list[int]] = []
    prefixes: list[int] = []
    for i in order:
        if runs and share:
            members = len(runs[-1])
            prefix = min(prefixes[-1], common_prefix(prompts[runs[-1][0]], prompts[i]))
            saved = prefixes[-1] * (members - 1)
            if prefix * members > saved:
                runs[-1].append(i)
                prefixes[-1] = prefix
                continue
        runs.append([i])
        prefixes.append(len(prompts[i]))
    sequences = [
        TrainSequence(i, prompts[i], np.zeros(len(prompts[i]), np.bool_), prefix, f"{run[0]}")
        for run, prefix in zip(runs, prefixes, strict=True)
        for i in run
    ]
    return build_blocks(sequences, cost)


def prompt_places(blocks: Sequence[Block]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """For each sequence its index and where its tokens lie in the packed stack, int64 (P,), prefix included."""
    start = 0
    for block in blocks:
        prefix = np.arange(start, start + len(block.prefix))
        start += len(block.prefix)
        for sequence, length in zip(block.sequences, block.branch_lengths, strict=True):
            yield sequence.index, np.concatenate([prefix, np.arange(start, start + length)])
            start += length

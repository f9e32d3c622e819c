"""Log-probs under the initial weights: computed once, before the first update, with the weights that are trained.

A fresh LoRA adapter changes nothing, so under LoRA these are the base model's. No second copy of the model is held.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from posttrain.orchestration.fixed_data.batch import Array, FixedBatch
from posttrain.orchestration.fixed_data.dataset import Example, rows_of_step
from posttrain.orchestration.fixed_data.workbench import FixedBench

FILE = "reference_logprobs.safetensors"


@dataclass(frozen=True, slots=True)
class References:
    """Summed log-probs float64, NaN where none is needed.

    ``train`` (rows, answers) and ``held_out`` likewise; ``train_mismatched`` and ``held_out_mismatched`` (rows,).
    """

    train: Array
    held_out: Array
    train_mismatched: Array
    held_out_mismatched: Array


def compute_references(bench: FixedBench, held_out: Sequence[Example]) -> References:
    """Score every row the run will visit, and the held-out ones. The trainer must be at its initial weights."""
    train, settings = bench.data.train, bench.settings
    visited: set[int] = set()
    for step in range(1, settings.run.steps + 1):
        visited.update(rows_of_step(step, settings.data.rows_per_step, len(train), settings.run.seed))
        if len(visited) == len(train):
            break
    chosen = np.array(sorted(visited), np.int64)
    answers = bench.method.answers
    scored, mismatched = np.full((len(train), answers), np.nan), np.full(len(train), np.nan)
    examples = [train[i] for i in chosen]
    scored[chosen] = _score(bench, examples)
    mismatched[chosen] = bench.score_mismatched(examples)
    return References(scored, _score(bench, held_out), mismatched, bench.score_mismatched(held_out))


def _score(bench: FixedBench, examples: Sequence[Example]) -> Array:
    batch = FixedBatch.of(examples, bench.method.answers)
    return bench.score(batch).reshape(len(examples), bench.method.answers)


def write_references(folder: Path, references: References) -> None:
    """Keep them for a resumed run, whole or not at all."""
    for leftover in folder.glob(f".{FILE}.tmp-*"):
        leftover.unlink()
    temporary = folder / f".{FILE}.tmp-{os.getpid()}"
    save_file({name: np.ascontiguousarray(values) for name, values in asdict(references).items()}, temporary)
    temporary.replace(folder / FILE)


def read_references(folder: Path) -> References | None:
    """What an earlier attempt wrote; ``None`` where nothing is."""
    path = folder / FILE
    return References(**load_file(path)) if path.is_file() else None

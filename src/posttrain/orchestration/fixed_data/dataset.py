"""The rows of a run: read, checked, rendered, split by prompt, and put in the order in which they are trained."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from posttrain.environment.sources import read_rows
from posttrain.errors import InputError
from posttrain.orchestration.fixed_data.records import Record, UnusableRowError, record_of
from posttrain.orchestration.fixed_data.render import Rendered, Renderer
from posttrain.settings.data import DataSettings
from posttrain.settings.rows.fixed import RowKind


@dataclass(frozen=True, slots=True)
class Example:
    """One usable row. ``answers`` are (chosen, rejected) of a pair, otherwise one.

    ``mismatched`` is a labelled answer after another row's prompt, for KTO's reference point; absent where every
    prompt is the same or the two together are too long.
    """

    record: Record
    answers: tuple[Rendered, ...]
    mismatched: Rendered | None = None

    @property
    def tokens(self) -> int:
        """Tokens of what must be computed together: all its answers, each with its prompt."""
        together = sum(len(answer) for answer in self.answers)
        return together if self.mismatched is None else max(together, len(self.mismatched))


@dataclass(frozen=True, slots=True)
class Dropped:
    """Rows left out of one file or both: too long, and unusable by reason."""

    too_long: int = 0
    unusable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FixedData:
    """Rows to train on and rows held out, in file order."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    dropped: Dropped

    @property
    def longest(self) -> int:
        """Tokens of the longest row: of both answers of a pair."""
        return max(example.tokens for example in (*self.train, *self.held_out))


def load_data(data: DataSettings, kind: RowKind, renderer: Renderer, context_length: int) -> FixedData:
    """Read, check, render and split.

    Raises InputError for a file that cannot be read, a column that is not there, rows that cannot be used (unless
    ``data.unusable`` drops them) or are too long (unless ``data.too_long`` does), held-out prompts that are trained,
    and too few rows for a step.
    """
    limit = context_length if data.max_tokens == "auto" else data.max_tokens
    if limit > context_length:
        raise InputError(
            "data.max_tokens",
            limit,
            f"the model's context holds {context_length}",
            f"Set it to at most {context_length}.",
        )
    reading = _Reading(data, kind, renderer, limit)
    rows = reading.examples("data.path", data.path)
    if data.evaluation_path is None:
        train, held_out = _split(rows, data.evaluation_fraction, data.split_seed)
    else:
        train, held_out = rows, reading.examples("data.evaluation_path", data.evaluation_path)
        _check_apart(train, held_out)
    dropped = reading.dropped()
    _check_enough(data, kind, train, dropped)
    if kind == "answers":
        train, held_out = (_with_mismatched(rows, renderer, limit) for rows in (train, held_out))
    return FixedData(tuple(train), tuple(held_out), dropped)


@dataclass(slots=True)
class _Reading:
    data: DataSettings
    kind: RowKind
    renderer: Renderer
    limit: int
    too_long: int = 0
    unusable: Counter[str] = field(default_factory=Counter[str])

    def dropped(self) -> Dropped:
        return Dropped(self.too_long, dict(self.unusable))

    def examples(self, setting: str, path: str) -> list[Example]:
        found: list[Example] = []
        refused: list[tuple[str, str]] = []
        long: list[tuple[str, int]] = []
        for row in read_rows(setting, path):
            try:
                record = record_of(setting, row, self.kind, self.data)
                example = Example(record, self.renderer.answers(record))
            except UnusableRowError as error:
                refused.append((row.place, str(error)))
                continue
            longest = max(len(answer) for answer in example.answers)
            if longest > self.limit:
                long.append((row.place, longest))
            else:
                found.append(example)
        self._judge(setting, refused, long)
        if not found:
            raise InputError(setting, path, "has no row that can be trained on", "Look at what was left out.")
        return found

    def _judge(self, setting: str, refused: Sequence[tuple[str, str]], long: Sequence[tuple[str, int]]) -> None:
        if refused and self.data.unusable == "refuse":
            more = f" ({len(refused)} such rows)" if len(refused) > 1 else ""
            fix = 'Correct it, or set data.unusable = "drop" to leave such rows out.'
            raise InputError(setting, refused[0][0], f"{refused[0][1]}{more}", fix)
        if long and self.data.too_long == "refuse":
            place, tokens = long[0]
            problem = f"has {tokens} tokens and data.max_tokens is {self.limit} ({len(long)} such rows)"
            raise InputError(setting, place, problem, 'Raise it, or set data.too_long = "drop".')
        self.too_long += len(long)
        self.unusable.update(reason for _, reason in refused)


def _split(rows: Sequence[Example], fraction: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Whole prompts are held out, chosen by a hash, so that the order of the file changes nothing."""
    prompts = list(dict.fromkeys(example.record.prompt for example in rows))
    count = round(fraction * len(prompts)) if fraction == 0.0 else max(1, round(fraction * len(prompts)))
    if count >= len(prompts):
        raise InputError(
            "data.evaluation_fraction", fraction, f"holds out all of the {len(prompts)} different prompts", "Add rows."
        )

    def order(example_prompt: tuple[object, ...]) -> bytes:
        return hashlib.sha256(f"{seed}\0{example_prompt!r}".encode()).digest()

    held_out = set(sorted(prompts, key=order)[:count])
    return [e for e in rows if e.record.prompt not in held_out], [e for e in rows if e.record.prompt in held_out]


def _with_mismatched(rows: Sequence[Example], renderer: Renderer, limit: int) -> list[Example]:
    """Each answer's prompt exchanged for that of the next row, around the end, that has another one."""
    count = len(rows)
    following: list[int | None] = [None] * (2 * count)
    for i in reversed(range(2 * count - 1)):
        differs = rows[i % count].record.prompt != rows[(i + 1) % count].record.prompt
        following[i] = (i + 1) % count if differs else following[i + 1]
    found: list[Example] = []
    for example, partner in zip(rows, following[:count], strict=True):
        rendered = None if partner is None else renderer.after_prompt_of(rows[partner].record, example.record)
        fits = rendered is not None and len(rendered) <= limit
        found.append(replace(example, mismatched=rendered if fits else None))
    return found


def _check_apart(train: Sequence[Example], held_out: Sequence[Example]) -> None:
    trained = {example.record.prompt: example.record.place for example in train}
    for example in held_out:
        if (place := trained.get(example.record.prompt)) is not None:
            raise InputError(
                "data.evaluation_path",
                example.record.place,
                f"has the same prompt as {place}, which is trained",
                "Remove the prompt from one of the files.",
            )


def _check_enough(data: DataSettings, kind: RowKind, train: Sequence[Example], dropped: Dropped) -> None:
    if len(train) < data.rows_per_step:
        left_out = dropped.too_long + sum(dropped.unusable.values())
        raise InputError(
            "data.rows_per_step",
            data.rows_per_step,
            f"only {len(train)} rows are left to train on ({left_out} were left out)",
            f"Set it to at most {len(train)}, or add rows.",
        )
    if kind == "answers" and len({example.record.desirable for example in train}) < 2:
        only = "desirable" if train[0].record.desirable else "undesirable"
        raise InputError("data.label_column", data.label_column, f"every row is {only}", "Add rows of the other label.")
    if kind == "answers" and len({example.record.prompt for example in train}) < 2:
        raise InputError(
            "data.path", data.path, "every row has the same prompt", "KTO compares with answers to other prompts."
        )


def rows_of_step(step: int, rows_per_step: int, rows: int, seed: int) -> list[int]:
    """Indices of the rows of a step, from 1: passes over all rows, each in an order of its own.

    A pure function of its arguments, so that a resumed run needs no cursor. Orders are permutations by NumPy's PCG64
    from (seed, pass). A step across the end of a pass takes the rest of it and the start of the next.
    """
    first, last = (step - 1) * rows_per_step, step * rows_per_step
    found: list[int] = []
    for epoch in range(first // rows, (last - 1) // rows + 1):
        order = np.random.default_rng((seed, epoch)).permutation(rows)
        found += order[max(first - epoch * rows, 0) : last - epoch * rows].tolist()
    return found

"""The rows of one step or one evaluation as sequences with constants beside them.

Legend: ``E`` examples, ``A`` answers of an example (2 for pairs, otherwise 1), ``R = E A`` rows. Row ``A e + a`` is
answer ``a`` of example ``e``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.errors import NonFiniteError
from posttrain.model.packing import TrainSequence
from posttrain.orchestration.fixed_data.dataset import Example

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """``tokens`` int64 (R,) trained tokens; ``reference`` float64 (R,) summed log-probs of the initial weights, NaN
    where the row needs none."""

    examples: tuple[Example, ...]
    answers: int
    tokens: npt.NDArray[np.int64]
    reference: Array

    @classmethod
    def of(cls, examples: Sequence[Example], answers: int, reference: Array | None = None) -> FixedBatch:
        """``reference`` float64 (E, A) of these examples, absent where there is none."""
        tokens = np.array([e.answers[a].targets for e in examples for a in range(answers)], np.int64)
        flat = np.full(len(tokens), np.nan) if reference is None else reference.reshape(-1)
        return cls(tuple(examples), answers, tokens, flat)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def units(self) -> list[list[TrainSequence]]:
        """The sequences of each example, which stay together."""
        return [
            [_sequence(e, example, self.answers * e + a, a) for a in range(self.answers)]
            for e, example in enumerate(self.examples)
        ]

    def side(self, values: npt.NDArray[np.generic], answer: int) -> npt.NDArray[np.generic]:
        """Of (R,) those of one answer of each example, (E,)."""
        return values[answer :: self.answers]

    @property
    def desirable(self) -> npt.NDArray[np.bool_]:
        """Labels, (E,)."""
        return np.array([example.record.desirable for example in self.examples], np.bool_)

    @property
    def margins(self) -> Array:
        """Margins, (E,)."""
        return np.array([example.record.margin for example in self.examples])


def _sequence(group: int, example: Example, index: int, answer: int) -> TrainSequence:
    rendered = example.answers[answer]
    return TrainSequence(index, rendered.token_ids, rendered.target_mask, rendered.prefix, str(group))


def placed(error: NonFiniteError, batch: FixedBatch) -> NonFiniteError:
    """The same error with the place in the file of the row it names, where it names one."""
    named = re.search(r"\brow (\d+)", str(error))
    if named is None:
        return error
    example, answer = divmod(int(named[1]), batch.answers)
    side = ("chosen answer", "rejected answer")[answer] if batch.answers == 2 else "answer"
    return NonFiniteError(f"{error} ({batch.examples[example].record.place}, its {side})")


def mismatched_units(examples: Sequence[Example]) -> tuple[list[list[TrainSequence]], npt.NDArray[np.int64]]:
    """Answers after prompts they do not belong to, where an example has one; and which examples those are, (n,)."""
    having = [e for e, example in enumerate(examples) if example.mismatched is not None]
    units: list[list[TrainSequence]] = []
    for index, e in enumerate(having):
        rendered = examples[e].mismatched
        assert rendered is not None
        units.append([TrainSequence(index, rendered.token_ids, rendered.target_mask, rendered.prefix, str(index))])
    return units, np.array(having, np.int64)

"""How a critic on the policy's own hidden states takes part in the policy's passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from posttrain.logprobs.scoring import Scores
from posttrain.policy.rows import RowTable

ValueTerm = Callable[[Scores, npt.NDArray[np.int64]], torch.Tensor | None]
"""From a micro-batch's scores and its targets' places in the table (M,) to what is added to the policy's loss."""


class SharedValues(Protocol):
    """A value head that trains inside the policy's updates."""

    @property
    def moves_backbone(self) -> bool:
        """True if every trained row has a gradient, whatever its advantage."""
        ...

    def begin_update(self, table: RowTable, tokens: int) -> ValueTerm:
        """The term of one policy update of ``tokens`` trained tokens."""
        ...

    def end_update(self) -> None:
        """The policy has made its step; the head makes its own."""
        ...
